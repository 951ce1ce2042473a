// Numbers and times as a person reads them.

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const whole = new Intl.NumberFormat("en-US");

export const count = (number) => whole.format(number);

export const moment = (seconds) => full.format(seconds * 1000);

/** The time of day; with the date if that is not today. */
export function time(seconds, now = Date.now()) {
  const date = new Date(seconds * 1000);
  const text = clock.format(date);
  return date.toDateString() === new Date(now).toDateString() ? text : `${day.format(date)} ${text}`;
}

export function duration(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(2)} s`;
}

export function tokens(row) {
  if (row.input_tokens === null && row.output_tokens === null) return "";
  const shown = (number) => (number === null ? "?" : count(number));
  return `${shown(row.input_tokens)} / ${shown(row.output_tokens)}`;
}

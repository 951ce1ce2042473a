// Numbers and times as a person reads them.

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (number) => whole.format(number);

export const compact = (number) => short.format(number);

export const moment = (seconds) => full.format(seconds * 1000);

export const time = (seconds) => clock.format(seconds * 1000);

/** The day; "" for today. */
export function date(seconds, now = Date.now()) {
  const given = new Date(seconds * 1000);
  return given.toDateString() === new Date(now).toDateString() ? "" : day.format(given);
}

export function duration(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(2)} s`;
}

const SIGNS = { USD: "$", EUR: "€", GBP: "£" };

/** A cost, such as $0.00585, with three digits at least. */
export function money(cost, currency) {
  const digits = cost >= 1 || cost === 0 ? 2 : Math.min(6, 2 - Math.floor(Math.log10(Math.abs(cost))));
  const number = cost.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return currency in SIGNS ? `${SIGNS[currency]}${number}` : `${number} ${currency}`.trim();
}

export function tokens(row) {
  if (row.input_tokens === null && row.output_tokens === null) return "";
  const shown = (number) => (number === null ? "?" : count(number));
  return `${shown(row.input_tokens)} / ${shown(row.output_tokens)}`;
}

// A list of which only the rows near the visible part are in the document.

const SPARE = 12; // rows above and below the visible ones

/** Shows `length` rows in `scroller`; `draw(element, index)` fills a row's element, which is used again. */
export class WindowedList {
  #scroller;
  #sizer;
  #create;
  #draw;
  #elements = [];
  #length = 0;
  #height = 0;
  #drawn = "";
  #waiting = false;

  constructor(scroller, sizer, create, draw) {
    this.#scroller = scroller;
    this.#sizer = sizer;
    this.#create = create;
    this.#draw = draw;
    scroller.addEventListener("scroll", () => this.#later(), { passive: true });
    new ResizeObserver(() => this.refresh()).observe(scroller);
  }

  get rowHeight() {
    return this.#height;
  }

  /** Set how many rows there are, after older ones came at the end. */
  extend(length) {
    this.#length = length;
    this.#sizer.style.height = `${length * this.#height}px`;
    this.#later();
  }

  /** Set how many rows there are, and draw again. added: rows that came on top; the visible ones stay in place. */
  resize(length, added = 0) {
    this.#length = length;
    this.#measure();
    const scrolled = this.#scroller.scrollTop;
    this.#sizer.style.height = `${length * this.#height}px`;
    if (added && scrolled > 0) this.#scroller.scrollTop = scrolled + added * this.#height;
    this.refresh();
  }

  /** Draw the rows again. */
  refresh() {
    this.#measure();
    this.#sizer.style.height = `${this.#length * this.#height}px`;
    this.#drawn = "";
    this.#show();
  }

  /** Scroll until a row is visible, and return its element. */
  reveal(index) {
    const top = index * this.#height;
    const { scrollTop, clientHeight } = this.#scroller;
    if (top < scrollTop) this.#scroller.scrollTop = top;
    else if (top + this.#height > scrollTop + clientHeight) this.#scroller.scrollTop = top + this.#height - clientHeight;
    this.#show();
    return this.#elements[index % this.#elements.length];
  }

  get pageSize() {
    return Math.max(1, Math.floor(this.#scroller.clientHeight / this.#height) - 1);
  }

  #measure() {
    this.#height = parseFloat(getComputedStyle(this.#scroller).getPropertyValue("--row-height"));
  }

  #later() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#show();
    });
  }

  #show() {
    const { scrollTop, clientHeight } = this.#scroller;
    const first = Math.max(0, Math.floor(scrollTop / this.#height) - SPARE);
    const last = Math.min(this.#length, Math.ceil((scrollTop + clientHeight) / this.#height) + SPARE);
    if (this.#drawn === `${first}-${last}`) return;
    const enough = Math.min(400, Math.ceil(clientHeight / this.#height) + 2 * SPARE + 1);
    if (this.#elements.length < enough) {
      this.#drawn = "";
      while (this.#elements.length < enough) {
        const element = this.#create();
        this.#elements.push(element);
        this.#sizer.append(element);
      }
    }
    const before = this.#drawn ? this.#drawn.split("-").map(Number) : [0, 0];
    for (let index = first; index < last; index += 1) {
      if (index >= before[0] && index < before[1]) continue;
      const element = this.#elements[index % this.#elements.length];
      element.style.transform = `translateY(${index * this.#height}px)`;
      this.#draw(element, index);
    }
    const used = new Set();
    for (let index = first; index < last; index += 1) used.add(index % this.#elements.length);
    this.#elements.forEach((element, number) => {
      element.hidden = !used.has(number);
    });
    this.#drawn = `${first}-${last}`;
  }
}

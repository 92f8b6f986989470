/// <reference lib="dom" />
/** Tables that change in place: what stays the same is not touched. All text is text, never markup. */

/** @typedef {{ id: string, colour: string | undefined, state: string, cells: string[] }} Row */

/**
 * Sets text only where it differs.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export class Table {
  #body;
  #left;
  #columns;
  #none;
  /** @type {Map<string, HTMLTableRowElement>} */
  #rows = new Map();

  /**
   * @param {HTMLTableElement} element
   * @param {string[]} head titles of the columns
   * @param {number} left so many columns are text
   * @param {string} none what it says while it is empty
   */
  constructor(element, head, left, none) {
    this.#left = left;
    this.#columns = head.length;
    const line = element.createTHead().insertRow();
    head.forEach((title, i) => {
      const cell = document.createElement('th');
      cell.scope = 'col';
      cell.textContent = title;
      if (i < left) cell.className = 'text';
      line.append(cell);
    });
    this.#body = element.createTBody();
    const row = this.#body.insertRow();
    const cell = row.insertCell();
    cell.className = 'none';
    cell.colSpan = head.length;
    cell.textContent = none;
    this.#none = row;
  }

  /** @param {Row[]} rows */
  show(rows) {
    const ids = new Set(rows.map(({ id }) => id));
    for (const [id, element] of this.#rows) {
      if (ids.has(id)) continue;
      element.remove();
      this.#rows.delete(id);
    }
    this.#none.hidden = rows.length > 0;
    for (const [i, row] of rows.entries()) {
      const element = this.#rows.get(row.id) ?? this.#make(row.id);
      // Behind the row that says there are none.
      const there = this.#body.rows[i + 1];
      if (there !== element) this.#body.insertBefore(element, there);
      this.#update(element, row);
    }
  }

  /** @param {string} id */
  #make(id) {
    const element = this.#body.insertRow();
    for (let i = 0; i < this.#columns; i++) {
      const cell = element.insertCell();
      if (i < this.#left) cell.className = 'text';
      if (i === 0) {
        const swatch = document.createElement('span');
        swatch.className = 'swatch';
        cell.append(swatch);
      }
      const text = document.createElement('span');
      if (i === 0) text.className = 'state';
      cell.append(text);
    }
    this.#rows.set(id, element);
    return element;
  }

  /**
   * @param {HTMLTableRowElement} element
   * @param {Row} row
   */
  #update(element, { colour, state, cells }) {
    if (element.dataset.state !== state) element.dataset.state = state;
    const swatch = /** @type {HTMLElement} */ (element.cells[0].firstElementChild);
    const background = colour ?? 'transparent';
    if (swatch.dataset.colour !== background) {
      swatch.dataset.colour = background;
      swatch.style.background = background;
    }
    for (const [i, text] of cells.entries())
      setText(/** @type {Element} */ (element.cells[i].lastElementChild), text);
  }
}

/** Numbers of so many in a row have places of their own. */
const PLACES = 256;

/**
 * What is held, by its number. Numbers only grow and most of what is held ends soon, so a number's place is free again when it
 * comes round; what is held for longer, or is more than there are places, is in a Map. A Map alone is made anew for every few that
 * come and go, which costs as much as a lease's object.
 */
export class HeldTable<H extends { readonly id: number }> implements Iterable<H> {
  readonly #places: (H | null)[] = new Array(PLACES).fill(null);
  readonly #others = new Map<number, H>();

  add(held: H): void {
    const place = held.id % PLACES;
    if (this.#places[place] === null) this.#places[place] = held;
    else this.#others.set(held.id, held);
  }

  get(id: number): H | undefined {
    const found = this.#places[id % PLACES]!;
    return found?.id === id ? found : this.#others.get(id);
  }

  delete({ id }: H): void {
    const place = id % PLACES;
    if (this.#places[place]?.id === id) this.#places[place] = null;
    else this.#others.delete(id);
  }

  *[Symbol.iterator](): Iterator<H> {
    for (const held of this.#places) if (held !== null) yield held;
    yield* this.#others.values();
  }

  clear(): void {
    this.#places.fill(null);
    this.#others.clear();
  }
}

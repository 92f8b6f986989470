import { expect, test } from 'vitest';
import { HeldTable } from '../../src/channels/lending/held-table.js';

test('numbers that share a place are held beside each other, found, and forgotten one by one', () => {
  const table = new HeldTable<{ readonly id: number }>();
  const all = [1, 2, 257, 513, 1025].map((id) => ({ id }));
  for (const held of all) table.add(held);
  const ids = () => [...table].map(({ id }) => id).sort((a, b) => a - b);
  expect(ids()).toEqual([1, 2, 257, 513, 1025]);
  for (const held of all) expect(table.get(held.id)).toBe(held);
  expect(table.get(769)).toBeUndefined();
  table.delete({ id: 769 }); // never held: the place is another's
  table.delete(all[0]!);
  table.delete(all[3]!);
  expect([table.get(1), table.get(513)]).toEqual([undefined, undefined]);
  const later = { id: 2049 };
  table.add(later); // in the place that has become free
  expect([table.get(2049), table.get(257)]).toEqual([later, all[2]]);
  // As it is given back: while it is walked.
  for (const held of table) if (held.id > 256) table.delete(held);
  expect(ids()).toEqual([2]);
  table.clear();
  expect(ids()).toEqual([]);
});

import { firstValueFrom, toArray } from 'rxjs';
import { expect, test } from 'vitest';
import { World } from '../support/world.js';

test('one publisher, one subscriber', async () => {
  const world = new World();
  const a = await world.join();
  const b = await world.join();
  const got: unknown[] = [];
  b.channel('x').subscribe((value) => got.push(value));
  await world.settle();
  a.channel('x').next({ a: 1 });
  a.channel('x').next({ a: 2 });
  await world.settle();
  expect(got).toEqual([{ a: 1 }, { a: 2 }]);
});
void firstValueFrom;
void toArray;

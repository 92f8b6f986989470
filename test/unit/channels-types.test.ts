/** What the compiler says of the public types: checked by `tsc -p tsconfig.test.json`, run as a test for the rest. */
import { map, type Observable, of } from 'rxjs';
import { expectTypeOf, test } from 'vitest';
import { z } from 'zod';
import {
  type Channel,
  type ChannelEvent,
  custom,
  failOnGap,
  type join,
  type Loan,
  type Member,
  type Pattern,
  type PatternMessage,
  struct,
} from '../../src/index.js';

interface Tick {
  bid: number;
  ask: number;
}

/** Never called: only its types count. */
function free(member: Member): void {
  // The payload is unknown without a schema or a type argument.
  expectTypeOf(member.channel('x')).toEqualTypeOf<Channel<unknown, unknown>>();
  member.channel('x').subscribe((value) => expectTypeOf(value).toBeUnknown());
  expectTypeOf(member.channel<Tick>('x')).toEqualTypeOf<Channel<Tick>>();
  expectTypeOf(member.channel<Tick>('x', { overflow: { latestBy: 'bid' } })).toEqualTypeOf<Channel<Tick>>();
  // @ts-expect-error: a Tick has an ask
  member.channel<Tick>('x').next({ bid: 1 });
  expectTypeOf(member.channel('x', { codec: 'bytes' })).toEqualTypeOf<Channel<Uint8Array>>();
  expectTypeOf(member.channel('x', { codec: 'json' })).toEqualTypeOf<Channel<unknown>>();

  const schema = z.object({ when: z.string().transform((text) => new Date(text)) });
  const typed = member.channel('x', { schema });
  typed.subscribe((value) => expectTypeOf(value).toEqualTypeOf<{ when: Date }>());
  expectTypeOf(typed.next).parameter(0).toEqualTypeOf<{ when: string } | Loan>();
  expectTypeOf(member.channel<Tick>('x', { schema })).toEqualTypeOf<Channel<Tick>>();

  const layout = struct({ n: 'u32', big: 'u64' });
  member.channel('x', { codec: layout }).subscribe((value) => {
    expectTypeOf(value.n).toBeNumber();
  });
  const own = custom<Tick>({
    name: 'tick',
    encode: () => new Uint8Array(),
    decode: () => ({ bid: 1, ask: 2 }),
  });
  expectTypeOf(member.channel('x', { codec: own })).toEqualTypeOf<Channel<Tick>>();

  // @ts-expect-error: an unknown option
  member.channel('x', { overflw: 'wait' });
  // @ts-expect-error: an unknown policy
  member.channel('x', { overflow: 'drop' });
  // @ts-expect-error: functions don't travel
  member.channel('x', { overflow: { latestBy: (value: Tick) => value.bid } });
}

function streams(channel: Channel<Tick>): void {
  expectTypeOf(channel).toExtend<Observable<Tick>>();
  of({ bid: 1, ask: 2 }).subscribe(channel);
  expectTypeOf(channel.pipe(map(({ bid }) => bid))).toEqualTypeOf<Observable<number>>();
  expectTypeOf(channel.messages$).toEqualTypeOf<Observable<ChannelEvent<Tick>>>();
  channel.messages$.pipe(failOnGap()).subscribe((event) => {
    expectTypeOf(event.type).toEqualTypeOf<'message' | 'publisher-joined' | 'publisher-left'>();
  });
  expectTypeOf(channel.batches({ max: 10 })).toEqualTypeOf<Observable<Tick[]>>();
  expectTypeOf(channel.values()).toEqualTypeOf<AsyncIterableIterator<Tick>>();
  expectTypeOf(channel.offer({ bid: 1, ask: 2 })).toBeBoolean();
  expectTypeOf(channel.publish({ bid: 1, ask: 2 })).resolves.toEqualTypeOf<{
    readonly sequence: number;
    readonly received: number;
    readonly dropped: number;
  }>();
  expectTypeOf<Channel<Tick>>().toExtend<AsyncDisposable>();
}

function patterns(member: Member): void {
  const pattern = member.pattern('ticks.*');
  expectTypeOf(pattern).toEqualTypeOf<Pattern<unknown>>();
  pattern.subscribe(({ channel, value }) => {
    expectTypeOf(channel).toBeString();
    expectTypeOf(value).toBeUnknown();
  });
  expectTypeOf(member.pattern<Tick>('ticks.*')).toExtend<Observable<PatternMessage<Tick>>>();
  // @ts-expect-error: patterns are read-only
  pattern.next(1);
  // @ts-expect-error: patterns are read-only
  void pattern.publish;
  // @ts-expect-error: an option of publishers
  member.pattern('ticks.*', { maxQueueBytes: 1 });
}

interface Contract {
  'ticks.eurusd': Tick;
  frames: Uint8Array;
  [name: `log.${string}`]: { line: string };
}

function contract(member: Member<Contract>): void {
  expectTypeOf(member.channel('ticks.eurusd')).toEqualTypeOf<Channel<Tick>>();
  expectTypeOf(member.channel('frames', { codec: 'bytes' })).toEqualTypeOf<Channel<Uint8Array>>();
  expectTypeOf(member.channel('log.web')).toEqualTypeOf<Channel<{ line: string }>>();
  // @ts-expect-error: a name that is not in the contract
  member.channel('ticks.eurusb');
  // @ts-expect-error: a name that is not in the contract, whatever the type argument
  member.channel<Tick>('other');
  // @ts-expect-error: the codec is of another type
  member.channel('ticks.eurusd', { codec: struct({ n: 'u32' }) });
  member.channel('ticks.eurusd').subscribe((value) => expectTypeOf(value).toEqualTypeOf<Tick>());
  expectTypeOf(member.pattern<Tick>('ticks.*')).toEqualTypeOf<Pattern<Tick>>();
}

test('types', () => {
  const call = (joining: typeof join) => joining('domain', { mode: 'event' });
  expectTypeOf(call).returns.resolves.toEqualTypeOf<Member>();
  expectTypeOf<ReturnType<typeof join<Contract>>>().resolves.toEqualTypeOf<Member<Contract>>();
  expectTypeOf<Member>().toExtend<AsyncDisposable>();
  void [free, streams, patterns, contract];
});

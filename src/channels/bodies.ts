import { checkChannelName } from './names.js';
import type { DoneBody, SubscribedBody } from './wire.js';

const utf8 = new TextEncoder();

/** The payload of SUBSCRIBED: u32 id, u32 generation, f64 first live sequence, then the body as JSON. */
export function writeSubscribed(
  id: number,
  generation: number,
  first: number,
  body: SubscribedBody,
): Uint8Array {
  const text = utf8.encode(JSON.stringify(body));
  const payload = new Uint8Array(16 + text.length);
  const view = new DataView(payload.buffer);
  view.setUint32(0, id, true);
  view.setUint32(4, generation, true);
  view.setFloat64(8, first, true);
  payload.set(text, 16);
  return payload;
}

/** Checks the JSON of SUBSCRIBED (I9). @throws Error that says what is wrong */
export function readSubscribed(text: string): SubscribedBody {
  const body = JSON.parse(text) as Partial<SubscribedBody> | null;
  if (typeof body !== 'object' || body === null) throw new Error('not an object');
  const { name, codec, schema, delivery } = body;
  checkChannelName(name);
  if (typeof codec !== 'string' || codec.length > 4096) throw new Error('no codec');
  if (schema !== null && (typeof schema !== 'string' || schema.length > 4096)) throw new Error('no schema');
  if (delivery !== 'lane' && delivery !== 'multicast') throw new Error('no delivery');
  return { name, codec, schema, delivery };
}

/** Checks the JSON of DONE (I9). @returns null if it is not valid */
export function readDone(text: string): DoneBody | null {
  try {
    const { how, error } = JSON.parse(text) as DoneBody;
    if (how !== 'complete' && how !== 'error' && how !== 'closed') return null;
    if (error === undefined) return { how };
    const { name, message, code } = error;
    if (typeof name !== 'string' || typeof message !== 'string') return null;
    return { how, error: { name, message, ...(typeof code === 'string' ? { code } : {}) } };
  } catch {
    return null;
  }
}

/** The body of DONE for an error that ends a publishing. */
export function doneBody(error: unknown): DoneBody {
  const known = error instanceof Error ? error : new Error(String(error));
  const { code } = known as { code?: unknown };
  return {
    how: 'error',
    error: {
      name: known.name.slice(0, 200),
      message: known.message.slice(0, 1000),
      ...(typeof code === 'string' ? { code: code.slice(0, 200) } : {}),
    },
  };
}

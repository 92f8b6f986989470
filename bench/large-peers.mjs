/**
 * Who carries large messages, each as
 *   hub(spec, answered) -> {send(bytes), close}   to spec.subscribers leaves; send may give a promise when it has to wait;
 *                                                 answered(bytes, index) for each answer of the leaf with that index
 *   leaf(spec, take) -> {answer(bytes), close}    take(bytes) for each message; its first and last byte were read
 */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { Worker } from 'node:worker_threads';

/** Messages of up to a slot are no loans. */
const SLOT = 16 * 1024;

const made = new Map();
/** Says in the second byte of what a leaf answers who it is. */
let self = 1;
/** What is sent again and again where the sender keeps its memory. */
function payload(bytes) {
  let found = made.get(bytes);
  if (found === undefined) {
    // Written, so that its pages are there.
    found = Buffer.alloc(bytes, 1);
    found[1] = self;
    made.set(bytes, found);
  }
  return found;
}

function check(bytes) {
  if (bytes[0] !== 1 || bytes[bytes.length - 1] !== 1) throw new Error('not what was sent');
  return bytes.length;
}

// ---- millrace --------------------------------------------------------------------------------------------------------

/** Small messages have a channel and a plain subscriber; large ones are leased. */
async function millrace(spec, name, device, into, out, take, loans) {
  const { join } = await import('../dist/index.mjs');
  const member = await join(spec.domain, { name, device, poolBytes: 2 ** 33, heldBytes: 2 ** 33 });
  const channel = (of) => member.channel(of, { codec: 'bytes' });
  const [large, small] = [channel(out), channel(`${out}-small`)];
  channel(into)
    .leases()
    .subscribe((lease) => {
      const [bytes, index] = [check(lease.bytes), lease.bytes[1]];
      lease.release();
      take(bytes, index);
    });
  channel(`${into}-small`).subscribe((bytes) => take(check(bytes), bytes[1]));
  const lend = (bytes) => {
    try {
      return large.loan(bytes);
    } catch (error) {
      if (error.code !== 'ERR_POOL_FULL') throw error;
      return null;
    }
  };
  const lent = new Set();
  /** Two blocks of each size: the second would be made beside the messages, and of 1 GiB take longer than they are measured. */
  const lendFirst = (bytes) => {
    lent.add(bytes);
    for (const loan of [lend(bytes), lend(bytes)]) loan?.discard();
  };
  const offer = (bytes) => {
    if (bytes <= SLOT) return small.offer(payload(bytes));
    if (!loans) return large.offer(payload(bytes));
    if (!lent.has(bytes)) lendFirst(bytes);
    const loan = lend(bytes);
    if (loan === null) return false;
    loan.bytes[0] = 1;
    loan.bytes[bytes - 1] = 1;
    const taken = large.offer(loan);
    if (!taken) loan.discard();
    return taken;
  };
  const send = (bytes) => {
    if (offer(bytes)) return undefined;
    return (bytes <= SLOT ? small : large).whenWritable().then(() => send(bytes));
  };
  return { send, large, small, close: () => member.leave() };
}

/** On the same port of the software device; or on `apart`, the subscribers, whence they read by RDMA READ. */
const ours = (loans, apart = 'soft0') => ({
  async hub(spec, answered) {
    const { send, large, small, close } = await millrace(spec, 'hub', 'soft0', 'up', 'down', answered, loans);
    for (const channel of [large, small]) await channel.ready({ subscribers: spec.subscribers });
    return { send, close };
  },
  async leaf(spec, take) {
    self = spec.index;
    const { send, close } = await millrace(spec, `leaf-${spec.index}`, apart, 'down', 'up', take, loans);
    return { answer: send, close };
  },
});

// ---- zeromq ----------------------------------------------------------------------------------------------------------

/** Push and pull, a pair of sockets for each subscriber. One send at a time is what it takes. */
const zeromq = {
  async hub(spec, answered) {
    const { Pull, Push } = await import('zeromq');
    const into = new Pull();
    await into.bind(`ipc://${spec.folder}/up`);
    const outs = [];
    for (let i = 0; i < spec.subscribers; i++) {
      const out = new Push();
      out.connect(`ipc://${spec.folder}/${i}`);
      outs.push(out);
    }
    (async () => {
      for await (const [message] of into) answered(check(message), message[1]);
    })();
    const send = async (bytes) => {
      for (const out of outs) await out.send(payload(bytes));
    };
    return { send };
  },
  async leaf(spec, take) {
    self = spec.index;
    const { Pull, Push } = await import('zeromq');
    const into = new Pull();
    const out = new Push();
    await into.bind(`ipc://${spec.folder}/${spec.index}`);
    out.connect(`ipc://${spec.folder}/up`);
    (async () => {
      for await (const [message] of into) await take(check(message));
    })();
    return { answer: (bytes) => out.send(payload(bytes)) };
  },
};

// ---- Unix sockets ----------------------------------------------------------------------------------------------------

/** Calls take(bytes) once a message is here. Its pieces are read and not put together, which a program would have to do. */
function listen(stream, take) {
  const header = Buffer.alloc(8);
  let have = 0;
  let missing = 0;
  stream.on('data', (data) => {
    for (let at = 0; at < data.length; ) {
      if (missing === 0) {
        const some = data.copy(header, have, at, at + 8 - have);
        have += some;
        at += some;
        if (have < 8) return;
        missing = header.readDoubleLE();
        continue;
      }
      const some = Math.min(missing, data.length - at);
      check(data.subarray(at, at + some));
      missing -= some;
      at += some;
      if (missing > 0) continue;
      have = 0;
      take(header.readDoubleLE());
    }
  });
  return (bytes) => {
    const length = Buffer.alloc(8);
    length.writeDoubleLE(bytes);
    stream.cork();
    stream.write(length);
    stream.write(payload(bytes));
    stream.uncork();
  };
}

const socket = {
  async hub(spec, answered) {
    const sends = [];
    for (let i = 0; i < spec.subscribers; i++) {
      const stream = connect(`${spec.folder}/${i}`);
      await once(stream, 'connect');
      sends.push(listen(stream, (bytes) => answered(bytes, i)));
    }
    return {
      send: (bytes) => {
        for (const send of sends) send(bytes);
      },
    };
  },
  async leaf(spec, take) {
    const server = createServer();
    server.listen(`${spec.folder}/${spec.index}`);
    await once(server, 'listening');
    let answer = () => {};
    server.once('connection', (stream) => {
      answer = listen(stream, take);
    });
    return { answer: (bytes) => answer(bytes) };
  },
};

// ---- threads ---------------------------------------------------------------------------------------------------------

/** To one thread its memory is transferred, and comes back with the answer; to several it is copied, for each. */
const threads = {
  async hub(spec, answered) {
    const free = new Map();
    const workers = [];
    for (let i = 0; i < spec.subscribers; i++) {
      const worker = new Worker(new URL('./large-child.mjs', import.meta.url), { workerData: spec });
      await once(worker, 'online');
      worker.on('message', (back) => {
        if (back !== null) free.set(back.byteLength, [...(free.get(back.byteLength) ?? []), back]);
        answered(back?.byteLength, i);
      });
      workers.push(worker);
    }
    const send = (bytes) => {
      if (spec.subscribers > 1) {
        for (const worker of workers) worker.postMessage(payload(bytes));
        return;
      }
      const buffer = free.get(bytes)?.pop() ?? new Uint8Array(bytes).fill(1).buffer;
      workers[0].postMessage(buffer, [buffer]);
    };
    return { send };
  },
  leaf(spec, port) {
    port.on('message', (message) => {
      const bytes = message instanceof ArrayBuffer ? new Uint8Array(message) : message;
      check(bytes);
      if (spec.subscribers > 1) port.postMessage(null);
      else port.postMessage(message, [message]);
    });
  },
};

export const peers = {
  loan: ours(true),
  copy: ours(false),
  remote: ours(true, 'soft1'),
  zeromq,
  socket,
  threads,
};

import { type Codec, CodecError, checkPayload, checkTarget, kindOf, standalone } from './codec.js';
import { type FieldReader, type FieldWriter, fits, readerOf, writerOf } from './struct-field.js';
import { type Field, type Layout, layoutOf, type StructSpec, type StructValue } from './struct-layout.js';
import { RANGES, refuse } from './struct-range.js';
import { sources, targets } from './view.js';

export type { FieldType, StructSpec, StructValue } from './struct-layout.js';

type Write = (view: DataView, bytes: Uint8Array, at: number, value: Record<string, unknown>) => void;
type Read = (view: DataView, at: number) => unknown;

/** How a struct codec gets its functions. 'closures' works where code generation is forbidden; 'auto' prefers 'generated'. */
export type StructMode = 'auto' | 'generated' | 'closures';

/**
 * A fixed layout: little endian, each field aligned to its size in the order given, padding zeroed. No names and no
 * lengths travel; the layout's fingerprint is announced, and a peer with another one is refused by name.
 *
 * 'i64' and 'u64' are bigints. 'char:N' holds up to N bytes of UTF-8 and is padded with zeros. 'bytes:N' holds exactly N
 * bytes. ['f64', 3] takes an array or typed array of three and gives a typed array; arrays and bytes that are read are
 * views of the batch they came in, owned by whoever holds them. A value that does not fit is refused with
 * ERR_CODEC_RANGE, one of another kind with ERR_CODEC_VALUE; properties that are not fields are not sent.
 *
 * @throws MillraceTypeError (ERR_INVALID_OPTION) if the specification is wrong, naming the field
 */
export function struct<const S extends StructSpec>(spec: S): Codec<StructValue<S>> {
  return structCodec(layoutOf(spec), 'auto') as Codec<StructValue<S>>;
}

/** Makes the codec of a layout. The mode is for tests. */
export function structCodec(layout: Layout, mode: StructMode): Codec<Record<string, unknown>> {
  const { size, fingerprint: name } = layout;
  const { write, read } = functionsOf(layout, mode);
  return standalone<Record<string, unknown>>(
    name,
    'struct',
    (value, into, start, end) => {
      checkTarget('struct', into, start, end);
      if (end - start < size) return -1;
      if (typeof value !== 'object' || value === null) {
        throw new CodecError(
          'ERR_CODEC_VALUE',
          `struct: takes an object with the fields of ${name}, not ${kindOf(value)}`,
        );
      }
      write(targets.data(into), into, into.byteOffset + start, value);
      return start + size;
    },
    (from, start, end, limits) => {
      checkPayload('struct', from, start, end, limits);
      if (end - start !== size) {
        throw new CodecError(
          'ERR_CODEC_MALFORMED',
          `struct: the payload has ${end - start} bytes; ${name} has ${size}`,
        );
      }
      return read(sources.data(from), from.byteOffset + start) as Record<string, unknown>;
    },
  );
}

function functionsOf(layout: Layout, mode: StructMode): { write: Write; read: Read } {
  if (mode !== 'closures') {
    try {
      return generate(layout);
    } catch (error) {
      // An EvalError: the process or a policy forbids code from strings.
      if (mode === 'generated') throw error;
    }
  }
  return assemble(layout);
}

/** Without generated code: a loop over closures. */
function assemble(layout: Layout): { write: Write; read: Read } {
  const { fields, padding } = layout;
  const writers: FieldWriter[] = fields.map(writerOf);
  const readers: FieldReader[] = fields.map(readerOf);
  return {
    write(view, bytes, at, value) {
      for (let i = 0; i < fields.length; i++) {
        const field = fields[i]!;
        writers[i]!(view, bytes, at + field.offset, value[field.name] as never);
      }
      for (const [from, to] of padding)
        bytes.fill(0, at - bytes.byteOffset + from, at - bytes.byteOffset + to);
    },
    read(view, at) {
      const made: Record<string, unknown> = {};
      for (let i = 0; i < fields.length; i++)
        made[fields[i]!.name] = readers[i]!(view, at + fields[i]!.offset);
      return made;
    },
  };
}

const METHODS = {
  i8: 'Int8',
  u8: 'Uint8',
  i16: 'Int16',
  u16: 'Uint16',
  i32: 'Int32',
  u32: 'Uint32',
  i64: 'BigInt64',
  u64: 'BigUint64',
  f32: 'Float32',
  f64: 'Float64',
} as const;

/** The condition under which a number is refused, as code over `v`. */
function refusalOf(field: Field): string {
  const kind = field.kind as keyof typeof METHODS;
  if (kind === 'f64') return `typeof v!=='number'`;
  if (kind === 'f32') return `!fits('f32',v)`;
  const [least, most] = RANGES[kind]!;
  // Integers that the engine's small operations tell exactly are tested with those.
  if (kind === 'i32') return `typeof v!=='number'||v!==(v|0)`;
  if (kind === 'u32') return `typeof v!=='number'||v!==(v>>>0)`;
  if (kind === 'i64' || kind === 'u64') return `typeof v!=='bigint'||v<${least}n||v>${most}n`;
  return `typeof v!=='number'||v!==(v|0)||v<${least}||v>${most}`;
}

/**
 * Straight-line code for one layout. Everything that enters the text is a number of ours or a field name as a JSON
 * string, so that no specification can smuggle code in. ('__proto__', which a literal would take as the prototype, is no
 * field name.)
 */
function generate(layout: Layout): { write: Write; read: Read } {
  const { fields, padding } = layout;
  const writers = fields.map(writerOf);
  const readers = fields.map(readerOf);
  const writing: string[] = [];
  const reading: string[] = [];
  fields.forEach((field, i) => {
    const key = JSON.stringify(field.name);
    const at = field.offset === 0 ? 'p' : `p+${field.offset}`;
    const direct = !field.array && field.kind !== 'char' && field.kind !== 'bytes';
    if (!direct) {
      writing.push(`w[${i}](d,b,${at},o[${key}]);`);
      reading.push(`${key}:r[${i}](d,${at})`);
    } else if (field.kind === 'bool') {
      writing.push(`v=o[${key}];if(typeof v!=='boolean')refuse(f[${i}],v);d.setUint8(${at},v?1:0);`);
      reading.push(`${key}:d.getUint8(${at})!==0`);
    } else {
      const method = METHODS[field.kind as keyof typeof METHODS];
      writing.push(`v=o[${key}];if(${refusalOf(field)})refuse(f[${i}],v);d.set${method}(${at},v,true);`);
      reading.push(`${key}:d.get${method}(${at},true)`);
    }
  });
  for (const [from, to] of padding) for (let i = from; i < to; i++) writing.push(`d.setUint8(p+${i},0);`);
  const write = new Function(
    'refuse',
    'fits',
    'f',
    'w',
    `'use strict';return function(d,b,p,o){let v;${writing.join('')}}`,
  );
  const read = new Function('r', `'use strict';return function(d,p){return {${reading.join(',')}}}`);
  return { write: write(refuse, fits, fields, writers) as Write, read: read(readers) as Read };
}

export { bytes } from './bytes.js';
export {
  type Codec,
  CodecError,
  type CodecErrorCode,
  type CodecOption,
  type DecodeLimits,
  type Decoder,
  type Encoder,
  MAX_DEFINITION_BYTES,
} from './codec.js';
export { type CustomCodec, custom } from './custom.js';
export { json } from './json.js';
export { msgpackr } from './msgpack.js';
export { resolveCodec } from './resolve.js';
export { type FieldType, type StructSpec, type StructValue, struct } from './struct.js';
export type { ScalarType } from './struct-layout.js';

import type { Codec } from './codec/index.js';
import type { Engine } from './engine.js';
import type { ChannelSettings } from './options.js';
import { validator } from './schema.js';
import type { OutChannel } from './sending/outbound.js';
import type { Status } from './status.js';

/** Makes a member a publisher of a channel with those settings. @throws as Publishers.publish() and openLane() */
export function publishOn<In>(
  { publishers }: Engine,
  name: string,
  settings: ChannelSettings,
  status: Status,
): OutChannel<In> {
  const { codec, schema, schemaId, validate, maxQueueBytes, maxWait, replay, replayBytes } = settings;
  const { lane, delivery, pace, repair, repairBytes } = settings;
  return publishers.publish<In>(
    name,
    {
      codec: codec as unknown as Codec<In>,
      schemaId,
      maxQueueBytes,
      maxWait,
      replay,
      replayBytes,
      lane: lane === 'own' ? publishers.openLane(name) : 0,
      multicast: delivery === 'multicast' ? { pace, repair, repairBytes } : null,
      validate: schema === null || validate === 'off' ? null : validator(schema, validate),
    },
    status,
  );
}

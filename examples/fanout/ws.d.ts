/** As much of the package ws (which comes without types) as the example uses. */
declare module 'ws' {
  import type { IncomingMessage } from 'node:http';
  import type { Duplex } from 'node:stream';

  export class WebSocket {
    readonly bufferedAmount: number;
    send(text: string): void;
    terminate(): void;
    on(event: 'close' | 'error', listener: () => void): this;
  }
  export class WebSocketServer {
    constructor(options: { noServer: true; maxPayload: number; perMessageDeflate: false });
    handleUpgrade(
      request: IncomingMessage,
      socket: Duplex,
      head: Buffer,
      done: (one: WebSocket) => void,
    ): void;
  }
}

/** Payloads that JavaScript has copied for the pool and for leases, ever; see `copies` of the member's resources. */
export class Copies {
  count = 0;
  bytes = 0;

  add(bytes: number): void {
    this.count++;
    this.bytes += bytes;
  }
}

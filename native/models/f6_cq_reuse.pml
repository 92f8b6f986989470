/* F6  The memory of a CQ is used again by another CQ of the same process, under claimers that still have the old one in mind.
 *
 * The receiver destroys the CQ with serial 1 at any time and makes the one with serial 2 in the same memory: a directory of two entries with
 * owner words. Initiator 1 (one QP; with TWO there is a second) looks the CQ up, makes the ring file, named after the serial, claims an entry, publishes one frame (tag 1 into
 * serial 1, tag 2 into serial 2), then looks up again until it has published into serial 2. Taking WQEs is left out: the frame into serial 1 may
 * be lost with its CQ, the one into serial 2 may not be, nor come twice. Initiator 1 may be killed at any time (KILLED).
 *
 *   claim    file; CAS 0 -> owner; serial again: changed: CAS owner -> 0, remove the file, look up again; ready bit
 *   visit    owner word; map the file by its name (receiver's serial, owner); owner word again: changed: unmap. No file: leave the entry alone
 *   destroy  serial := 0; each entry that has a ring is drained and forgotten (file removed, word CAS owner -> 0)
 *   death    entries of the dead one are drained, then 0
 *
 * Switches, each takes one rule away:
 *   NOSERIAL   the claimer does not read the serial again
 *   NOWORD     the visitor does not read the owner word again
 *   BLINDFREE  the undoing claimer stores 0 without comparing
 */
byte serial = 1, dir[2]; bit ready[2];
bit file[6]; byte tail[6];                  /* ring of QP q for serial s: R(q,s) */
byte got[6]; bit dead, kill, fin[3];
#define R(q,s) (((q)-1)*3+(s))

proctype initiator(byte q) {
  byte s, e, done;
  {
    do
    :: done==2 -> break
    :: else ->
       s = serial;
       if
       :: s==0 || s==done -> (serial!=0 && serial!=done)                        /* no such CQ: told of the next */
       :: else ->
          file[R(q,s)] = 1;
          if
          :: d_step { dir[0]==0 -> dir[0] = q; e = 0 }
          :: d_step { dir[1]==0 -> dir[1] = q; e = 1 }
          fi;
#ifndef NOSERIAL
          if
          :: serial != s ->
#ifdef BLINDFREE
             dir[e] = 0;
#else
             d_step { if :: dir[e]==q -> dir[e] = 0 :: else fi };
#endif
             file[R(q,s)] = 0;
             s = 0
          :: else
          fi;
#endif
          if
          :: s ->
             ready[e] = 1;
             tail[R(q,s)] = 1;
             ready[e] = 1;
             done = s
          :: else
          fi
       fi
    od;
    fin[q] = 1; false
  } unless { q==1 && kill -> dead = 1 }
}

inline visit(x) {
  if
  :: known[x]==0 && dir[x]!=0 ->
     q = dir[x];
     d_step { if :: q && file[R(q,mine)] -> known[x] = q :: else fi };          /* open and map */
#ifndef NOWORD
     if :: dir[x]!=q -> known[x] = 0 :: else fi
#endif
  :: else
  fi;
  if
  :: known[x] ->
     t = tail[R(known[x],mine)];
     if :: head[x] < t -> d_step { head[x] = t; got[R(known[x],mine)]++; assert(got[R(known[x],mine)]<2) } :: else fi
  :: else
  fi;
  q = 0; t = 0
}
inline forget(x) {                                                              /* the entry x, if it has a ring; head is per ring */
  d_step { q = known[x]; if :: q -> file[R(q,mine)] = 0; known[x] = 0; head[x] = 0 :: else fi };
  d_step { if :: q && dir[x]==q -> dir[x] = 0 :: else fi };
  q = 0
}

active proctype receiver() {
  byte mine = 1, t, q; byte known[2], head[2]; bit seen, other;
  do
  :: d_step { ready[0] -> ready[0] = 0 }; visit(0)
  :: d_step { ready[1] -> ready[1] = 0 }; visit(1)
  :: !other -> other = 1; visit(0); visit(1)                                     /* R8: somebody else has died */
  :: mine==1 ->
     serial = 0;
     visit(0); forget(0);
     visit(1); forget(1);
     mine = 2;
     serial = 2
  :: dead && !seen && mine==2 -> 
     if :: dir[0]==1 -> visit(0); forget(0) :: else fi;
     if :: dir[1]==1 -> visit(1); forget(1) :: else fi;
     d_step { if :: dir[0]==1 -> dir[0] = 0 :: else fi };                       /* also claims without a ring */
     d_step { if :: dir[1]==1 -> dir[1] = 0 :: else fi };
     seen = 1
  od
}
active proctype fates() {
#ifdef KILLED
  kill = 1
#else
  skip
#endif
}
init { atomic { run initiator(1);
#ifdef TWO
  run initiator(2)
#endif
} }
active proctype monitor() {
  timeout;
  assert(dead || (fin[1] && got[R(1,2)]==1));
#ifdef TWO
  assert(fin[2] && got[R(2,2)]==1);
#endif
  assert(!dead || (dir[0]!=1 && dir[1]!=1 && got[R(1,2)]==tail[R(1,2)]))
}

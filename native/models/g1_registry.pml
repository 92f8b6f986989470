/* G1  The registry folder of a domain on a host: members come and go without a lock on the folder.
 *
 * The folder's inode is the domain's identity. Each member has a presence file under an OFD lock, which the kernel drops with its holder, and further files
 * (its socket, its inbox) named after its incarnation, a number that is never used again. NP processes join, stay, and leave, at any time; process 0
 * may be killed or stopped between any two of its steps (VICTIM).
 *
 *   join    mkdir; create the presence file under a staged name; lock it; is it still there, in the folder that the path leads to? further files; rename
 *           the staged name to the visible one. Whatever fails: begin again with another incarnation. Then sweep.
 *   sweep   for each incarnation: note its names; then test its lock; free: remove the names that were noted, and no other
 *   leave   own files; unlock; sweep; rmdir (it succeeds for the last one only)
 *   death   each member that notices one sweeps
 *
 * Switches, each takes one rule away:
 *   NOSTAGE    the presence file is created under its visible name and then locked, and nobody looks whether it still is there
 *   ALLNAMES   the sweeper removes what the incarnation has by then, not what it had when its lock was found free
 *   NORENAME   the joiner does not mind when the staged name is gone
 *   NOINODE    the joiner does not compare the folder that its file is in with the one behind the path (passes: the rename finds out)
 *   NOSWEEP    who leaves does not sweep (somebody may have died while it was joining, whom nobody had a connection to)
 *   TESTFIRST  the sweeper tests the lock, then notes the names
 */
#ifndef NP
#define NP 3
#endif
#ifndef ATT
#define ATT 2                           /* attempts to join */
#endif
#define RUN 0
#define KILL 1
#define STOP 2
#define NAME(p,k) ((p)*ATT+(k))
#define NN (NP*ATT)

byte path, inodes;                      /* inode behind the path, 0 none */
byte st[NN], pub[NN], more[NN];         /* staged name, visible name, other files: inode of the folder they are in, 0 none */
byte lk[NN];                            /* holder+1 of the lock on the presence file */
byte fate; bit dead0, done[NP], leaving[NP], mustclean;

inline sweep() {
  s = 0;
  do
  :: d_step { do :: s < NN && (s/ATT == p || (st[s]==0 && pub[s]==0 && more[s]==0)) -> s++ :: else -> break od };
     if
     :: s < NN ->
#ifdef TESTFIRST
        d_step { o = (st[s] || pub[s]) && lk[s] };
#endif
        d_step { a = st[s]; b = pub[s]; c = more[s] };
#ifndef TESTFIRST
        d_step { o = (st[s] || pub[s]) && lk[s] };
#endif
        if
        :: !o ->
#ifdef ALLNAMES
           d_step { a = 1; b = 1; c = 1 };
#endif
           if :: c -> more[s] = 0 :: else fi;
           if :: a -> st[s] = 0 :: else fi;
           if :: b -> pub[s] = 0 :: else fi
        :: else
        fi;
        d_step { s++; o = 0; a = 0; b = 0; c = 0 }
     :: else -> break
     fi
  od;
  s = 0
}

proctype process(byte p) {
  byte k, n, s, ino, a, b, c; bit o;
  {
    do
    :: k < ATT ->
       d_step { n = NAME(p,k); k++ };
       if :: d_step { path==0 -> inodes++; path = inodes } :: else fi;   /* mkdir */
       if
       :: d_step { path!=0 ->
#ifdef NOSTAGE
            pub[n] = path };
#else
            st[n] = path };
#endif
          lk[n] = p+1;
          ino = path;
#ifdef NOSTAGE
          more[n] = ino; break
#else
          if
#ifdef NOINODE
          :: true ->
#else
          :: st[n]==ino ->
#endif
             d_step { if :: path==ino -> more[n] = path; o = 1 :: else -> o = 0 fi };
             if
             :: o ->
#ifdef NORENAME
                d_step { if :: st[n] -> pub[n] = st[n]; st[n] = 0 :: else fi }; break
#else
                d_step { if :: st[n] -> pub[n] = st[n]; st[n] = 0 :: else -> o = 0 fi };       /* rename */
                if :: o -> break :: else -> more[n] = 0 fi
#endif
             :: else
             fi
          :: else
          fi;
          d_step { st[n] = 0; lk[n] = 0; ino = 0; o = 0 }
#endif
       :: else
       fi
    :: d_step { k >= ATT -> leaving[p] = 1 }; goto out                   /* gives up, to keep it finite */
    od;
    k = 0; o = 0;
    assert(pub[n]==ino && path==ino);                                   /* a member, in the folder that everybody finds */
    sweep();
    do
    :: break
    :: dead0 && p && !k -> k = 1; sweep()
    od;
    assert(path==ino && pub[n]==ino && more[n]==ino);                   /* nobody took it away */
    leaving[p] = 1;
    more[n] = 0;
    pub[n] = 0;
    lk[n] = 0;
out: skip;
#ifndef NOSWEEP
    sweep();
#endif
    d_step { o = 1; s = 0;                                              /* rmdir: one operation of the kernel */
      do :: s < NN -> if :: st[s] || pub[s] || more[s] -> o = 0 :: else fi; s++ :: else -> break od;
      if :: o -> path = 0 :: else fi };
    d_step { done[p] = 1; k = 0; n = 0; s = 0; o = 0; ino = 0 };
    false
  } unless {
    p==0 && fate!=RUN;
    if
    :: fate==STOP -> false
    :: else -> d_step { s = 0; do :: s < NN -> if :: lk[s]==1 -> lk[s] = 0 :: else fi; s++ :: else -> break od; s = 0; dead0 = 1;
                        mustclean = !leaving[1] || !leaving[NP-1] }
    fi
  }
}
active proctype fates() {
#ifdef VICTIM
  if :: fate = KILL :: fate = STOP :: skip fi
#else
  skip
#endif
}
init { atomic { run process(0); run process(1);
#if NP>2
  run process(2)
#endif
} }
active proctype monitor() {
  timeout;
  assert(done[1] && done[NP-1]);
  assert(fate!=RUN || (done[0] && path==0));
  assert(fate!=KILL || !mustclean || path==0)                           /* nothing is left */
}

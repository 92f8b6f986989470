# Lets a shared library that is built on a newer system load on an older one:
#   millrace_glibc_floor(<target>)
# Each of these is defined in glibc_floor.cc, so that a newer C library on the building machine does
# not become a demand on the running one.
set(MILLRACE_GLIBC_FLOOR_SOURCE ${CMAKE_CURRENT_LIST_DIR}/glibc_floor.cc)
function(millrace_glibc_floor target)
  if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  if(NOT "${sources}" MATCHES "glibc_floor\\.cc")
    target_sources(${target} PRIVATE ${MILLRACE_GLIBC_FLOOR_SOURCE})
  endif()
  foreach(name
      pthread_create pthread_join pthread_sigmask pthread_once pthread_key_create __pthread_key_create
      pthread_key_delete pthread_getspecific pthread_setspecific pthread_mutex_trylock dlopen dlsym dlvsym dladdr dlclose dlerror
      stat lstat fstat fstatat __libc_single_threaded _dl_find_object arc4random)
    target_link_options(${target} PRIVATE -Wl,--wrap=${name})
  endforeach()
endfunction()

#include "quire.h"
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define NAME(name) name##_avx2
#define HAS_VNNI 0
#include "avx2.h"

const Ops quire_avx2 = OPS("AVX2");
#endif

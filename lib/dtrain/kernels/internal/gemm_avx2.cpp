#define DTRAIN_VECTOR_BYTES 32
#define DTRAIN_TILE_BYTES 64
#define DTRAIN_TILE_ROWS 6
#include "dtrain/kernels/internal/gemm_body.h"

namespace dtrain::kernels {

const GemmKernels<float> kFloatGemmAvx2 = kKernels<float>;
const GemmKernels<double> kDoubleGemmAvx2 = kKernels<double>;

}  // namespace dtrain::kernels

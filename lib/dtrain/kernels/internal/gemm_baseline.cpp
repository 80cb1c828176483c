#define DTRAIN_VECTOR_BYTES 16
#define DTRAIN_TILE_BYTES 64
#define DTRAIN_TILE_ROWS 2
#include "dtrain/kernels/internal/gemm_body.h"

namespace dtrain::kernels {

const GemmKernels<float> kFloatGemmBaseline = kKernels<float>;
const GemmKernels<double> kDoubleGemmBaseline = kKernels<double>;

}  // namespace dtrain::kernels

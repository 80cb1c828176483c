#define DTRAIN_VECTOR_BYTES 16
#define DTRAIN_TILE_BYTES 64
#define DTRAIN_TILE_ROWS 2
#include "dtrain/kernels/internal/product_body.h"

namespace dtrain::kernels {

const ProductKernels<float> kFloatProductBaseline = kKernels<float>;
const ProductKernels<double> kDoubleProductBaseline = kKernels<double>;

}  // namespace dtrain::kernels

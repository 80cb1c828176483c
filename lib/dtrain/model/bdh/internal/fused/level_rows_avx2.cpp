#include "dtrain/model/bdh/internal/fused/level_rows_body.h"

namespace dtrain::model::bdh {

const LevelRows<float, float> kFloatRowsAvx2 = kRows<float, float>;
const LevelRows<double, double> kDoubleRowsAvx2 = kRows<double, double>;
const LevelRows<Bfloat16Bits, float> kBfloat16RowsAvx2 = kRows<Bfloat16Bits, float>;

}  // namespace dtrain::model::bdh

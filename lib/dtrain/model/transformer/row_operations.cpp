#include "dtrain/model/transformer/row_operations.h"

#include "dtrain/model/transformer/internal/fused_rows.h"
#include "dtrain/model/transformer/internal/plain_rows.h"

namespace dtrain::model {

const RowOperations& row_operations(config::Kernels kernels) {
  return kernels == config::Kernels::fused ? kFusedRows : kPlainRows;
}

}  // namespace dtrain::model

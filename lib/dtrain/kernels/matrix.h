// A matrix that lies in memory of its owner.
#pragma once

#include <cstdint>

namespace dtrain::kernels {

/// Units: strides count elements.
template <typename T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = columns;
  std::int64_t column_stride = 1;

  [[nodiscard]] T* row(std::int64_t index) const { return data + index * row_stride; }
  [[nodiscard]] Matrix transposed() const {
    return {data, columns, rows, column_stride, row_stride};
  }
  [[nodiscard]] Matrix block(std::int64_t row, std::int64_t num_rows, std::int64_t column,
                             std::int64_t num_columns) const {
    return {data + row * row_stride + column * column_stride, num_rows, num_columns, row_stride,
            column_stride};
  }
  [[nodiscard]] Matrix row_block(std::int64_t row, std::int64_t num_rows) const {
    return block(row, num_rows, 0, columns);
  }
  [[nodiscard]] Matrix column_block(std::int64_t column, std::int64_t num_columns) const {
    return block(0, rows, column, num_columns);
  }
  [[nodiscard]] Matrix<const T> read_only() const {
    return {data, rows, columns, row_stride, column_stride};
  }
};

}  // namespace dtrain::kernels

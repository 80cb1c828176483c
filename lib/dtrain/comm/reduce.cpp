#include "dtrain/comm/reduce.h"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>

#include "dtrain/base/error.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::comm {

namespace {

// A block's partial sums stay in the first-level cache while the inputs stream by.
constexpr std::int64_t kBlock = 1024;

// The stack depth that tree_order.h needs for any number of ranks that fits an int.
constexpr std::size_t kSlots = 32;

// On the stack; only the slots that a group needs are touched.
template <typename T>
using Slots = std::array<std::array<T, kBlock>, kSlots>;

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Max {
  // b != b: a NaN of either operand propagates.
  template <typename T>
  static T apply(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

/// The type that adds elements of T: float32 for bfloat16 and float16, else T itself.
template <typename T>
using Wide = at::opmath_type<T>;

template <typename Op, typename T>
T apply_wide(T a, T b) {
  return static_cast<T>(Op::apply(static_cast<Wide<T>>(a), static_cast<Wide<T>>(b)));
}

template <typename Op, typename T>
void combine(Wide<T>* __restrict into, const T* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    into[i] = Op::apply(into[i], static_cast<Wide<T>>(from[i]));
  }
}

template <typename Op, typename T>
void combine_into(T* __restrict a, const T* __restrict b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) a[i] = apply_wide<Op>(a[i], b[i]);
}

/// As combine_into, with the operands swapped.
template <typename Op, typename T>
void combine_before(const T* __restrict a, T* __restrict b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) b[i] = apply_wide<Op>(a[i], b[i]);
}

template <typename Op, typename T>
void combine_apart(const T* __restrict a, const T* __restrict b, T* __restrict output,
                   std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) output[i] = apply_wide<Op>(a[i], b[i]);
}

/// Two inputs, the most common case, need no scratch. Either may be the output; three separate
/// loops tell the compiler what aliases, so that it can vectorise them.
template <typename Op, typename T>
void reduce_two(const T* a, const T* b, T* output, std::int64_t count) {
  if (output == a) return combine_into<Op>(output, b, count);
  if (output == b) return combine_before<Op>(a, output, count);
  combine_apart<Op>(a, b, output, count);
}

template <typename Op, typename T>
void reduce_block(std::span<const std::byte* const> inputs, std::int64_t begin, std::int64_t count,
                  Slots<Wide<T>>& slots, T* output) {
  const auto n = std::ssize(inputs);
  std::size_t depth = 0;
  for (std::int64_t index = 0; index < n; ++index) {
    const T* input = reinterpret_cast<const T*>(inputs[static_cast<std::size_t>(index)]) + begin;
    const TreeStep step = tree_step(index, n);
    if (step.starts_slot) {
      std::copy_n(input, count, slots[depth++].data());
    } else {
      combine<Op, T>(slots[depth - 1].data(), input, count);
    }
    for (int merge = 0; merge < step.merges; ++merge, --depth) {
      combine<Op, Wide<T>>(slots[depth - 2].data(), slots[depth - 1].data(), count);
    }
  }
  std::copy_n(slots[0].data(), count, output + begin);
}

template <typename Op, typename T>
void reduce_typed(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count) {
  T* result = reinterpret_cast<T*>(output);
  if (inputs.size() == 2) {
    reduce_two<Op>(reinterpret_cast<const T*>(inputs[0]), reinterpret_cast<const T*>(inputs[1]),
                   result, count);
    return;
  }
  Slots<Wide<T>> slots;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    reduce_block<Op>(inputs, begin, std::min(kBlock, count - begin), slots, result);
  }
}

template <typename T>
void reduce_op(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
               ReduceOp op) {
  if (op == ReduceOp::sum) {
    reduce_typed<Sum, T>(inputs, output, count);
  } else {
    reduce_typed<Max, T>(inputs, output, count);
  }
}

}  // namespace

bool is_reducible(at::ScalarType dtype) {
  return dtype == at::ScalarType::Float || dtype == at::ScalarType::Double ||
         dtype == at::ScalarType::BFloat16 || dtype == at::ScalarType::Half ||
         dtype == at::ScalarType::Long || dtype == at::ScalarType::Byte;
}

void reduce_in_tree_order(std::span<const std::byte* const> inputs, std::byte* output,
                          std::int64_t count, at::ScalarType dtype, ReduceOp op) {
  DTRAIN_CHECK(is_reducible(dtype) && !inputs.empty());
  switch (dtype) {
    case at::ScalarType::Float:
      return reduce_op<float>(inputs, output, count, op);
    case at::ScalarType::Double:
      return reduce_op<double>(inputs, output, count, op);
    case at::ScalarType::BFloat16:
      return reduce_op<at::BFloat16>(inputs, output, count, op);
    case at::ScalarType::Half:
      return reduce_op<at::Half>(inputs, output, count, op);
    case at::ScalarType::Long:
      return reduce_op<std::int64_t>(inputs, output, count, op);
    default:
      return reduce_op<std::uint8_t>(inputs, output, count, op);
  }
}

}  // namespace dtrain::comm

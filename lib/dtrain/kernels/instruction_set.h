// The instruction sets that kernels for the CPU are compiled for, and the one that this process
// uses.
#pragma once

#include <cstdint>

namespace dtrain::kernels {

/// Ascending: a CPU that has one has those before it.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

/// The set that LibTorch's kernels use, so that ATEN_CPU_CAPABILITY lowers both.
[[nodiscard]] InstructionSet instruction_set();

/// The variant of a table of kernels for a set.
template <typename Table>
[[nodiscard]] const Table& choose(const Table& baseline, const Table& avx2, const Table& avx512,
                                  InstructionSet set = instruction_set()) {
  switch (set) {
    case InstructionSet::avx512:
      return avx512;
    case InstructionSet::avx2:
      return avx2;
    default:
      return baseline;
  }
}

}  // namespace dtrain::kernels

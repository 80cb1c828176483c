// Selects the CPU instruction set whose compiled kernels are used.
#pragma once

#include <cstdint>

namespace dtrain::kernels {

/// The instruction sets that kernels are compiled for; each includes the sets before it.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

/// Returns the set that LibTorch's kernels use, so that ATEN_CPU_CAPABILITY limits ours too.
[[nodiscard]] InstructionSet instruction_set();

/// Selects the kernel table compiled for `set`.
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

#include "dtrain/kernels/instruction_set.h"

#include <ATen/Version.h>

#include <string>

namespace dtrain::kernels {

InstructionSet instruction_set() {
  static const InstructionSet set = [] {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") return InstructionSet::avx512;
    return name == "AVX2" ? InstructionSet::avx2 : InstructionSet::baseline;
  }();
  return set;
}

}  // namespace dtrain::kernels

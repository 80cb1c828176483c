#include "dtrain/kernels/bfloat16_path.h"

#include <ATen/native/CPUBlas.h>

#include <sstream>

#include "dtrain/base/rank_env.h"
#include "dtrain/kernels/instruction_set.h"

namespace dtrain::kernels {
namespace {

// The setting that limits oneDNN's instructions, "ONEDNN_MAX_CPU_ISA=AVX2"; those that limit MKL's
// do not concern it.
std::string limit_of_onednn() {
  std::istringstream settings(base::cpu_settings_of_process());
  for (std::string setting; settings >> setting;) {
    if (setting.find("_MAX_CPU_ISA=") != std::string::npos) return setting;
  }
  return {};
}

}  // namespace

std::string why_bfloat16_is_widened() {
  if (__builtin_cpu_supports("avx512bf16") == 0) {
    return "this CPU has no instructions that multiply it (AMX or AVX512-BF16)";
  }
  std::string limit = limit_of_onednn();
  if (limit.empty() && instruction_set() < InstructionSet::avx512) limit = "ATEN_CPU_CAPABILITY";
  return limit.empty() ? "" : limit + " keeps it from the CPU's instructions that multiply it";
}

Bfloat16Path bfloat16_path() {
  static const Bfloat16Path path = [] {
    if (!why_bfloat16_is_widened().empty()) return Bfloat16Path::widened;
    // LibTorch packs bfloat16 where oneDNN uses AMX, for which it has asked the system too.
    return at::native::cpublas::could_pack(at::kBFloat16) ? Bfloat16Path::amx
                                                          : Bfloat16Path::avx512_bf16;
  }();
  return path;
}

}  // namespace dtrain::kernels

// How this process multiplies matrices of bfloat16.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::kernels {

/// By the CPU's own instructions, through oneDNN, or as float32.
enum class Bfloat16Path : std::uint8_t { widened, avx512_bf16, amx };

[[nodiscard]] Bfloat16Path bfloat16_path();

/// Why the path is `widened`: what the CPU lacks, or the setting that keeps its instructions from
/// being used. Empty: it is another one.
[[nodiscard]] std::string why_bfloat16_is_widened();

}  // namespace dtrain::kernels

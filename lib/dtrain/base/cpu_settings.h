// Environment variables that limit which instructions the mathematical libraries use.
#pragma once

#include <string>

namespace dtrain::base {

/// Those that are set in this process's environment, "ONEDNN_MAX_CPU_ISA=AVX2 ..."; empty: none.
[[nodiscard]] std::string cpu_settings_of_process();

}  // namespace dtrain::base

#include "dtrain/job/cpu_type.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <map>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/text/text.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::job {
namespace {

#if defined(__x86_64__)

// Bits of cpuid leaf 7: ebx, ecx and edx of subleaf 0, eax of subleaf 1.
constexpr unsigned kAvx512Core = 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31;  // ebx: f, dq, bw, vl
constexpr unsigned kVnni = 1U << 11;                                         // ecx, avx512
constexpr unsigned kFp16 = 1U << 23;                                         // edx, avx512
constexpr unsigned kAmx = 1U << 24;                                          // edx, amx-tile
constexpr unsigned kAvxVnni = 1U << 4;                                       // eax of subleaf 1
constexpr unsigned kBf16 = 1U << 5;  // eax of subleaf 1, avx512

std::string instructions() {
  __builtin_cpu_init();
  const char* vendor = __builtin_cpu_is("intel") != 0 ? "Intel"
                       : __builtin_cpu_is("amd") != 0 ? "AMD"
                                                      : "other";
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  unsigned more = 0;  // eax of subleaf 1
  (void)__get_cpuid_count(7, 1, &more, &ebx, &ecx, &edx);
  (void)__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
  std::vector<std::string_view> names;
  const auto add_if = [&](bool has, std::string_view name) {
    if (has) names.push_back(name);
  };
  add_if(__builtin_cpu_supports("avx") != 0, "avx");
  add_if(__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0, "avx2");
  add_if((more & kAvxVnni) != 0, "avx-vnni");
  add_if((ebx & kAvx512Core) == kAvx512Core, "avx512");
  add_if((ecx & kVnni) != 0, "vnni");
  add_if((more & kBf16) != 0, "bf16");
  add_if((edx & kFp16) != 0, "fp16");
  add_if((edx & kAmx) != 0, "amx");
  return fmt::format("{}:{}", vendor, fmt::join(names, ","));
}

#else

std::string instructions() { return "other"; }

#endif

}  // namespace

std::string cpu_type() {
  const std::string settings = base::cpu_settings_of_process();
  return fmt::format("{}/{}{}{}", at::get_cpu_capability(), instructions(),
                     settings.empty() ? "" : " ", settings);
}

CpuTypes agree_on_cpu_types(comm::ProcessGroup& world, const std::string& own, bool may_differ) {
  std::map<std::string, std::vector<std::size_t>> ranks_of;
  const std::vector<std::string> types = comm::exchange_texts(world, own);
  for (std::size_t rank = 0; rank < types.size(); ++rank) ranks_of[types[rank]].push_back(rank);
  if (ranks_of.size() == 1) return {.text = own};
  std::string text;
  for (const auto& [type, ranks] : ranks_of) {
    text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", base::ranks_text(ranks),
                        ranks.size() == 1 ? "has" : "have", type);
  }
  if (!may_differ) {
    base::fail(
        base::ErrorKind::usage,
        "ranks have different CPU types, which round differently: {}; start all ranks on one "
        "type with the same settings, or set --mixed-cpus on",
        text);
  }
  return {.text = text, .are_mixed = true};
}

}  // namespace dtrain::job

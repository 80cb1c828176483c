#include "dtrain/commands/doctor/internal/checks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/host/available_resources.h"
#include "dtrain/base/host/cpu_list.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/commands/commands.h"
#include "dtrain/job/cpu_type.h"
#include "dtrain/job/run_folder.h"
#include "dtrain/metrics/format.h"

namespace dtrain::commands::doctor {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using Json = nlohmann::json;

constexpr int kRoundTrips = 8;
// Seconds; a larger offset disturbs logs, time limits and authentication.
constexpr double kMaxOffset = 1.0;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct Offset {
  double seconds = 0;  // a rank's clock minus rank 0's
  double uncertainty = INFINITY;
};

// On rank 0: the peer reads its clock between send and receive.
Offset measure_offset(comm::ProcessGroup& group, std::int64_t peer) {
  const auto word = at::empty({1}, at::kDouble);
  Offset best;
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const double asked = now();
    const auto begin = base::Clock::now();
    group.send(word, peer).wait_host();
    group.recv(word, peer).wait_host();
    const double half = base::seconds_since(begin) / 2;
    if (half < best.uncertainty) best = {word.const_data_ptr<double>()[0] - (asked + half), half};
  }
  return best;
}

void send_clock(comm::ProcessGroup& group) {
  const auto word = at::empty({1}, at::kDouble);
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    group.recv(word, 0).wait_host();
    word.mutable_data_ptr<double>()[0] = now();
    group.send(word, 0).wait_host();
  }
}

std::string readable(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

// "A (ranks 0-2,5); B (rank 3)"; only the value if all are equal.
std::string by_rank(std::span<const std::string> values) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    std::vector<int>& ranks = ranks_of[values[rank]];
    if (ranks.empty()) order.push_back(values[rank]);
    ranks.push_back(static_cast<int>(rank));
  }
  if (order.size() == 1) return order.front();
  std::string text;
  for (const std::string& value : order) {
    const std::vector<int>& ranks = ranks_of[value];
    text += fmt::format("{}{} (rank{} {})", text.empty() ? "" : "; ", value,
                        ranks.size() == 1 ? "" : "s", base::cpu_list_text(ranks));
  }
  return text;
}

struct Size {
  std::int64_t bytes;
  int repetitions;
};
constexpr Size kSizes[] = {{1 << 10, 200}, {1 << 18, 50}, {1 << 20, 20}, {1 << 24, 5}};

// Seconds of one all-reduce on the slowest rank.
double seconds_of(comm::World& world, comm::ProcessGroup& group, const Size& size) {
  const at::Tensor values = world.allocate(size.bytes).view(at::kFloat);  // (bytes / 4)
  group.all_reduce(values).wait_host();
  world.control().barrier();
  const auto begin = base::Clock::now();
  for (int i = 0; i < size.repetitions; ++i) group.all_reduce(values).wait_host();
  const auto seconds = at::full({1}, base::seconds_since(begin) / size.repetitions, at::kDouble);
  world.control().all_reduce(seconds, comm::ReduceOp::max).wait_host();
  return seconds.item<double>();
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// This rank's facts, as texts and numbers.
Json own_facts(const comm::World& world, const config::Config& config,
               const config::StartRecord& start) {
  const Json record = Json::parse(start.provenance);
  const std::int64_t gpus = record.value("gpus", std::int64_t{0});
  Json facts{
      {"host", host_name()},
      {"version", build_text(start)},
      {"cpu", record.value("cpu", "unknown")},
      {"type", job::cpu_type()},
      {"mask", base::cpu_list_text(base::affinity_mask())},
      {"cores", base::usable_cores()},
      {"threads", config.machine.threads},
      {"device",
       fmt::format("{}; plugins: {}; {}", world.device().str(), record.value("plugins", "none"),
                   gpus == 0 ? "no GPU with an NVIDIA driver is here"
                             : fmt::format("NVIDIA GPUs with a driver: {}", gpus))}};
  const auto bounds = base::memory_bounds();
  const auto least = std::ranges::min_element(bounds, {}, &base::MemoryBound::bytes);
  facts["memory"] = least == bounds.end() ? -1 : least->bytes;
  facts["bound"] = least == bounds.end() ? "" : least->source;
  return facts;
}

std::vector<std::string> texts(const std::vector<Json>& ranks, const char* key) {
  std::vector<std::string> values;
  for (const Json& rank : ranks) values.push_back(rank.value(key, ""));
  return values;
}

void report_cores(const std::vector<Json>& ranks, Findings& findings) {
  std::vector<std::string> values;
  std::map<std::string, std::int64_t> threads_on;  // by the cores that ranks share
  for (const Json& rank : ranks) {
    const std::int64_t cores = rank.value("cores", 0);
    const std::int64_t threads = rank.value("threads", 0);
    const std::string mask = rank.value("mask", "");
    values.push_back(fmt::format("{} usable (CPUs {}), {} thread{} per rank", cores, mask, threads,
                                 threads == 1 ? "" : "s"));
    threads_on[fmt::format("{} usable cores of {} (CPUs {})", cores, rank.value("host", ""),
                           mask)] += threads;
  }
  findings.fact_of_ranks("cores", values);
  for (const auto& [place, threads] : threads_on) {
    if (threads <= std::stoll(place)) continue;
    findings.note(fmt::format("{} threads share {}: fewer ranks or --threads would be faster",
                              threads, place));
  }
}

void report_memory(const std::vector<Json>& ranks, Findings& findings) {
  const auto bytes = [](const Json& rank) { return rank.value("memory", std::int64_t{-1}); };
  const auto least = std::ranges::min_element(ranks, {}, bytes);
  if (bytes(*least) < 0) return findings.fact("memory", "unknown");
  const std::string whose =
      ranks.size() == 1 ? "" : fmt::format("rank {}'s ", least - ranks.begin());
  findings.fact("memory", fmt::format("{}{} available, by {}", ranks.size() == 1 ? "" : "at least ",
                                      metrics::format_bytes(bytes(*least)),
                                      whose + least->value("bound", "")));
}

// The folders that must be created, outermost first.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = fs::absolute(folder, error).lexically_normal();
       !at.empty() && !fs::exists(at, error) && at != at.parent_path(); at = at.parent_path()) {
    if (at.has_filename()) missing.insert(missing.begin(), at);
  }
  return missing;
}

// Creates the folder and a file in it. Returns the error; empty on success.
std::string write_error(const std::string& run_dir, const std::string& name) {
  std::error_code error;
  fs::create_directories(run_dir, error);
  if (error) return fmt::format("'{}' cannot be created ({})", run_dir, error.message());
  try {
    base::Disk disk(ErrorKind::usage);
    const std::string path = fmt::format("{}.tmp-{}", job::shared_file(run_dir), name);
    const auto file = disk.create_file(path);
    const std::byte byte{};
    try {
      file->write({&byte, 1});
      file->close();
    } catch (const base::Error&) {
      disk.remove_file(path);
      throw;
    }
    disk.remove_file(path);
    return {};
  } catch (const base::Error& caught) {
    return caught.what();
  }
}

// Reports the ranks that cannot write. error: this rank's; empty if it could write or did not try.
// Returns true if no rank has an error.
bool check_writable(comm::ProcessGroup& world, const std::string& error, Findings& findings) {
  const std::vector<std::string> answers = comm::exchange_texts(world, error);
  std::vector<int> refused;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty()) refused.push_back(static_cast<int>(rank));
  }
  if (refused.empty()) return true;
  findings.problem(ErrorKind::usage,
                   fmt::format("rank{} {} cannot write to --run-dir: {}",
                               refused.size() == 1 ? "" : "s", base::cpu_list_text(refused),
                               answers[static_cast<std::size_t>(refused.front())]));
  return false;
}

void check_folder(comm::ProcessGroup& world, const std::string& run_dir, const std::string& job,
                  Findings& findings) {
  // Rank 0 first: if it cannot write, the others have nothing to see.
  const bool is_first = world.rank() == 0;
  if (!check_writable(world, is_first ? write_error(run_dir, job) : "", findings)) return;
  try {
    (void)job::hold_shared_folder(world, run_dir, job);
  } catch (const base::Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return findings.problem(error);
  }
  const std::string own = fmt::format("{}-{}", job, world.rank());
  if (!check_writable(world, is_first ? "" : write_error(run_dir, own), findings)) return;
  findings.fact("run folder", fmt::format("{}: visible and writable on all ranks", run_dir));
}

}  // namespace

void Findings::fact(std::string_view name, std::string_view value) {
  output_(fmt::format("{:<15} {}\n", name, value));
}

void Findings::problem(base::ErrorKind kind, std::string text) {
  fact("PROBLEM", text);
  problems_.push_back({kind, std::move(text)});
}

void Findings::fact_of_ranks(std::string_view name, std::span<const std::string> values) {
  fact(name, by_rank(values));
}

void Findings::equal_fact(std::string_view name, std::span<const std::string> values,
                          std::string_view advice) {
  fact_of_ranks(name, values);
  if (std::ranges::all_of(values, [&](const auto& value) { return value == values.front(); })) {
    return;
  }
  problem(base::ErrorKind::usage, fmt::format("{} differs between ranks: {}", name, advice));
}

void Findings::require_none() const {
  if (problems_.empty()) return;
  const Problem& first = problems_.front();
  base::fail(first.kind, "the doctor found {} problem{}, the first: {}", problems_.size(),
             problems_.size() == 1 ? "" : "s", first.text);
}

void measure_clocks(comm::World& world, Findings& findings) {
  if (world.size() == 1) return findings.fact("clocks", "one rank: nothing to compare");
  comm::ProcessGroup& group = world.control();
  const auto worst = at::full({3}, 0.0, at::kDouble);  // offset, uncertainty, rank
  auto* found = worst.mutable_data_ptr<double>();
  for (std::int64_t peer = 1; peer < world.size(); ++peer) {
    if (world.rank() == peer) send_clock(group);
    if (world.rank() != 0) continue;
    const Offset offset = measure_offset(group, peer);
    if (peer > 1 && std::abs(offset.seconds) <= std::abs(found[0])) continue;
    found[0] = offset.seconds;
    found[1] = offset.uncertainty;
    found[2] = static_cast<double>(peer);
  }
  group.broadcast(worst, 0).wait_host();
  const std::string text = fmt::format("rank {}'s clock is {} {} rank 0's, +/- {}", found[2],
                                       readable(std::abs(found[0])),
                                       found[0] < 0 ? "behind" : "ahead of", readable(found[1]));
  findings.fact("clocks", (world.size() > 2 ? "the farthest: " : "") + text);
  if (std::abs(found[0]) - found[1] < kMaxOffset) return;
  findings.problem(base::ErrorKind::usage,
                   text + ": synchronise the machines' clocks, for example with chrony");
}

void measure_all_reduce(comm::World& world, Findings& findings) {
  if (world.size() == 1) return findings.fact("all-reduce", "one rank: nothing to measure");
  const auto group = world.split(comm::ranks_below(world.size()), "doctor");
  const double ranks = static_cast<double>(world.size());
  for (const Size& size : kSizes) {
    const double seconds = seconds_of(world, *group, size);
    // The bytes that each rank must send at least, as in other all-reduce benchmarks (bus bandwidth).
    const double sent = 2 * (ranks - 1) / ranks * static_cast<double>(size.bytes);
    findings.fact("all-reduce",
                  fmt::format("{:>9}: {:>9}, {:.2f} GB/s", metrics::format_bytes(size.bytes),
                              readable(seconds), sent / seconds / 1e9));
  }
}

void report_machines(comm::World& world, const config::Config& config,
                     const config::StartRecord& record, Findings& findings) {
  const std::string own_text =
      own_facts(world, config, record).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Json> ranks;
  for (const std::string& text : comm::exchange_texts(world.control(), own_text)) {
    ranks.push_back(Json::parse(text));
  }
  findings.fact_of_ranks("hosts", texts(ranks, "host"));
  findings.equal_fact("versions", texts(ranks, "version"),
                      "install the same build on every machine (docs/guide/install.md)");
  findings.fact_of_ranks("processors", texts(ranks, "cpu"));
  const std::vector<std::string> types = texts(ranks, "type");
  if (config.machine.mixed_cpus) {
    findings.fact_of_ranks("CPU type", types);
  } else {
    findings.equal_fact("CPU type", types,
                        "types round differently; use machines of one type, or --mixed-cpus on");
  }
  report_cores(ranks, findings);
  report_memory(ranks, findings);
  findings.fact_of_ranks("devices", texts(ranks, "device"));
}

void check_run_folder(comm::ProcessGroup& world, const std::string& run_dir, Findings& findings) {
  if (run_dir.empty()) return findings.fact("run folder", "not given: add --run-dir to check it");
  std::vector<fs::path> made;
  if (world.rank() == 0) made = missing_folders(run_dir);
  const std::string job = comm::exchange_texts(world, checkpoint::store::new_start_id()).front();
  check_folder(world, run_dir, job, findings);
  world.barrier();
  for (; !made.empty(); made.pop_back()) ::rmdir(made.back().c_str());
}

}  // namespace dtrain::commands::doctor

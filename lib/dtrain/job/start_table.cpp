#include "dtrain/job/start_table.h"

#include <ATen/native/CPUBlas.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/schema/rows.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/data/split.h"
#include "dtrain/device/plugin.h"
#include "dtrain/kernels/gemm.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/compress/all_reducer.h"
#include "dtrain/parallel/pipeline/check.h"

namespace dtrain::job {
namespace {

using metrics::format_bytes;
using metrics::format_count;

std::string model_line(const StartFacts& facts) {
  return fmt::format("model           {}, {} parameters\n", facts.config.model.name,
                     format_count(facts.model.num_elements()));
}

// "model settings  layers=4 width=64 ..."
std::string model_settings_line(const config::Config& config) {
  const auto json = nlohmann::ordered_json::parse(config::to_json(config::Command::train, config));
  std::string text = "model settings ";
  for (const auto& [key, value] : json["model"].items()) {
    if (key == "name") continue;
    text += fmt::format(" {}={}", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text + "\n";
}

std::string batch_line(const config::Config& config) {
  const config::BatchConfig& batch = config.batch;
  return fmt::format("batch           {} sequences = microbatch {} x accumulation {} x {}\n",
                     batch.global, batch.microbatch, batch.grad_accum,
                     metrics::counted(config.layout.dp, "data rank"));
}

constexpr std::size_t kShownRanks = 8;  // per list, including the last item

// "0, 1, 2, ... 63"
std::string short_list(const std::vector<std::string>& items, std::string_view separator) {
  if (items.size() <= kShownRanks) return fmt::format("{}", fmt::join(items, separator));
  const std::vector<std::string> first(items.begin(), items.begin() + kShownRanks - 1);
  return fmt::format("{}{}... {}", fmt::join(first, separator), separator, items.back());
}

// Returns the samples that the run reads of its data, from that data's first step to the run's
// last.
double samples_of(const StartFacts& facts) {
  const config::Config& config = facts.config;
  return static_cast<double>(config.train.steps - facts.data_step) *
         static_cast<double>(config.batch.global);
}

std::string data_line(const StartFacts& facts) {
  const config::Config& config = facts.config;
  const data::Split& split = facts.split;
  return fmt::format(
      "data            {} training sample{} of {}, {:.2f} epochs in {}; {} for validation\n",
      format_count(split.train.size()), split.train.size() == 1 ? "" : "s",
      metrics::counted(config.data.seq_len, "token"),
      samples_of(facts) / static_cast<double>(split.train.size()),
      metrics::counted(config.train.steps - facts.data_step, "step"),
      format_count(split.validation.size()));
}

// Returns the epochs of each file of a mixture; empty for one file.
std::string mixture_lines(const StartFacts& facts) {
  const data::Mixture& mixture = facts.split.train;
  const std::vector<double> epochs = data::epochs_of(mixture, samples_of(facts));
  if (epochs.size() == 1) return {};
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    const data::Samples& own = mixture.sources()[i].samples;
    lines.push_back(fmt::format("                {}: {} samples, {:.2f} epochs", own.file().path(),
                                format_count(own.size()), epochs[i]));
  }
  return short_list(lines, "\n") + "\n";
}

// Empty without sharding.
std::string traffic_line(const parallel::RankPlan& plan) {
  const parallel::DataTraffic& traffic = plan.traffic;
  if (traffic == parallel::DataTraffic{}) return {};
  return fmt::format(
      "gathered shards {} units of {} shards; per step {} gathers ({} sent), {} reductions ({} "
      "sent), at most {} units gathered\n",
      plan.units.num_units(), plan.units.num_shards(), traffic.gathers,
      format_bytes(traffic.gather_bytes), traffic.reductions, format_bytes(traffic.reduction_bytes),
      traffic.max_gathered);
}

// Empty without a pipeline.
std::string pipeline_line(const StartFacts& facts) {
  const parallel::StagePosition& place = facts.plan.place;
  if (place.shape.stages == 1) return {};
  const model::BlockRange layers = facts.model.layers();
  std::vector<std::int64_t> sizes;
  for (const model::BlockRange& part : place.parts) {
    sizes.push_back(std::min(part.end, layers.end) - std::max(part.begin, layers.begin));
  }
  const auto schedule = make_pipeline_schedule(place.shape);
  return fmt::format(
      "pipeline        {}, layers of each part {}, bubble {:.3f} of the compute time\n",
      place.shape.order, fmt::join(sizes, " "), simulate(place.shape, schedule).bubble);
}

// Empty without activation checkpointing.
std::string recompute_line(const parallel::RankPlan& plan) {
  std::int64_t layers = 0;
  for (const parallel::RecomputeGroup& group : plan.options.recompute.groups) {
    layers += group.end - group.begin;
  }
  if (layers == 0) return {};
  const parallel::RecomputeGroup& first = plan.options.recompute.groups.front();
  return fmt::format("recompute       {} of {} layers, in groups of {} ({:.0f}% more FLOPs)\n",
                     layers, plan.model->layers().size(), first.end - first.begin,
                     100 * plan.flops.recomputed / plan.flops.passes);
}

// Empty on a CPU, whose type is part of the reproducibility class.
std::string device_line(const config::Config& config, c10::Device device) {
  if (device.is_cpu()) return {};
  return fmt::format("device          {}, {}\n", device.str(),
                     device::plugin(config.machine.device.kind).describe(device));
}

// Says how fused kernels multiply bfloat16.
std::string bfloat16_note(const config::Config& config) {
  if (config.machine.param_dtype != config::Dtype::bfloat16 || !has_fused_layers(config)) return {};
  switch (kernels::bfloat16_path()) {
    case kernels::Bfloat16Path::amx:
      return ", bfloat16 multiplied by AMX";
    case kernels::Bfloat16Path::avx512_bf16:
      return ", bfloat16 multiplied by AVX512-BF16";
    default:
      return ", bfloat16 multiplied as float32";
  }
}

// "float32: fused, full attention"
std::string kernels_line(const config::Config& config, const parallel::RankPlan& plan) {
  const std::string& kernels = plan.model->kernels;
  return fmt::format("kernels         {}{}{}{}\n", config.machine.dtype,
                     kernels.empty() ? "" : ": ", kernels,
                     kernels.empty() ? "" : bfloat16_note(config));
}

// Total and largest categories; metrics.jsonl has all of them.
std::string memory_lines(const parallel::MemoryPlan& memory) {
  constexpr std::size_t kShownParts = 3;
  auto parts = parallel::kMemoryParts;
  std::ranges::stable_sort(parts, std::ranges::greater{},
                           [&](const auto& part) { return memory.*part.bytes; });
  std::vector<std::string> largest;
  for (const auto& part : parts | std::views::take(kShownParts)) {
    largest.push_back(fmt::format("{} {}", part.label, format_bytes(memory.*part.bytes)));
  }
  std::string text = fmt::format("memory per rank {} predicted; largest parts: {}\n",
                                 format_bytes(memory.total()), fmt::join(largest, ", "));
  if (memory.peak() > memory.total()) {
    text +=
        fmt::format("memory at the end {} per rank predicted, while the final model is written\n",
                    format_bytes(memory.peak()));
  }
  if (memory.host > 0) {
    text += fmt::format("host memory     {} per rank predicted\n", format_bytes(memory.host));
  }
  return text;
}

// Empty without graphs.
std::string graphs_line(const config::Config& config) {
  if (!config.machine.compile || config.machine.device.is_cpu()) return {};
  return "graphs          one per block pass, recorded in the second step of each shape; "
         "layers are not fused\n";
}

// Bytes of gradients that a rank sends per step, with and without --compress.
struct SentGradients {
  std::int64_t compressed = 0;
  std::int64_t whole = 0;
  bool has_small_parts_only = false;  // all are sent uncompressed
};

// Empty without compression.
std::optional<SentGradients> sent_gradients(const StartFacts& facts) {
  const parallel::AllReducerSetup setup = parallel::replica_reduction(facts.plan);
  if (setup.compression.scheme.is_none()) return std::nullopt;
  const std::int64_t replicas = facts.config.layout.dp / facts.config.layout.shard_size;
  if (replicas == 1) return std::nullopt;
  std::int64_t elements = 0;
  SentGradients sent{.compressed = parallel::CompressedAllReducer::costs(setup, replicas).sent,
                     .has_small_parts_only = true};
  for (const auto& part : gradient_parts(setup.layout, setup.shard, setup.compression)) {
    elements += part.size();
    if (part.is_compressed) sent.has_small_parts_only = false;
  }
  sent.whole = parallel::bytes_in_ring(setup.codec->sent_bytes(elements), replicas);
  return sent;
}

std::string compression_line(const StartFacts& facts) {
  const auto sent = sent_gradients(facts);
  if (!sent) return {};
  return fmt::format("compression     {}: {} per step and rank instead of {}{}\n",
                     facts.config.machine.compress.text(), format_bytes(sent->compressed),
                     format_bytes(sent->whole),
                     sent->has_small_parts_only ? ", no part is large enough to compress" : "");
}

}  // namespace

std::string mesh_lines(const mesh::DeviceMesh& mesh) {
  const auto is_split = [&mesh](mesh::Axis axis) { return mesh.size(axis) > 1; };
  if (std::ranges::count_if(mesh::kAxes, is_split) < 2) return {};
  std::vector<std::string> places;
  for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const mesh::MeshShape place = mesh.coordinate(rank);
    std::vector<std::int64_t> numbers;
    for (const mesh::Axis axis : mesh::kAxes) numbers.push_back(place[axis]);
    places.push_back(fmt::format("{} ({})", rank, fmt::join(numbers, ",")));
  }
  std::vector<std::string_view> names;
  for (const mesh::Axis axis : mesh::kAxes) names.push_back(name_of(axis));
  std::string text = fmt::format("rank ({}) {}\n", fmt::join(names, ","), short_list(places, ", "));
  for (const mesh::Axis axis : mesh::kAxes | std::views::reverse) {
    if (mesh.size(axis) == 1) continue;
    std::vector<std::string> groups;
    for (const std::vector<std::int64_t>& line : mesh.groups_along(axis)) {
      std::vector<std::string> ranks;
      for (const std::int64_t rank : line) ranks.push_back(std::to_string(rank));
      groups.push_back(short_list(ranks, " "));
    }
    text += fmt::format("{} groups       {}\n", name_of(axis), short_list(groups, " | "));
  }
  return text;
}

std::string backend_text(const config::Config& config, const comm::World& world) {
  // A single rank's world does not communicate, whatever its backend.
  const bool is_single = config::mesh_of(config.layout).num_ranks() == 1;
  return is_single ? fmt::format("{}", config.machine.backend) : std::string(world.backend());
}

std::string reproducibility_class(const config::Config& config, const CpuTypes& cpus) {
  if (config.machine.reduction == config::Reduction::fast) {
    const bool is_alone = config::mesh_of(config.layout).num_ranks() == 1;
    return is_alone ? "none (--reduction fast: the order of additions depends on the layout)"
                    : "none (--reduction fast: additions have no fixed order)";
  }
  if (cpus.are_mixed) {
    return fmt::format("none (--mixed-cpus: {}; replicas are synchronised at every checkpoint)",
                       cpus.text);
  }
  std::string text;
  for (const config::Setting& setting : config::settings()) {
    if (setting.changes_bits == nullptr || !setting.changes_bits(config)) continue;
    text += fmt::format("{}={} ", setting.flag.substr(2), config::value_text(setting, config));
  }
  if (!config.machine.device.is_cpu())
    text += fmt::format("device={} ", config.machine.device.kind);
  return text + "cpu=" + cpus.text;
}

// Where kernels add in an order that the number of threads determines, it is part of what gives equal
// bits.
std::string threads_text(const config::Config& config) {
  const bool matters =
      config.machine.device.is_cpu() && config::conditions::kDependsOnThreads(config);
  return matters ? fmt::format(", equal bits with --threads {}", config.machine.threads) : "";
}

std::string start_table(const StartFacts& facts) {
  const config::Config& config = facts.config;
  const mesh::MeshShape mesh = config::mesh_of(config.layout);
  return model_line(facts) + data_line(facts) + batch_line(config) +
         fmt::format("layout          {}, backend {}, device {}{}\n", mesh.text(" x "),
                     backend_text(config, facts.world),
                     c10::DeviceTypeName(facts.world.device().type(), true), threads_text(config)) +
         device_line(config, facts.world.device()) + kernels_line(config, facts.plan) +
         compression_line(facts) + memory_lines(facts.plan.memory) + recompute_line(facts.plan) +
         fmt::format("run folder      {0}; every setting is in {0}/config.json", config.run.dir);
}

std::string start_details(const StartFacts& facts) {
  const config::Config& config = facts.config;
  return model_settings_line(config) + mixture_lines(facts) +
         mesh_lines(mesh::DeviceMesh(config::mesh_of(config.layout))) + pipeline_line(facts) +
         traffic_line(facts.plan) + graphs_line(config) +
         fmt::format("reproducibility class {}", reproducibility_class(config, facts.cpus));
}

nlohmann::ordered_json start_fields(const StartFacts& facts) {
  const auto& [config, world, model, plan, cpus, split, data_step] = facts;
  const mesh::MeshShape mesh = config::mesh_of(config.layout);
  const parallel::MemoryPlan& memory = plan.memory;
  nlohmann::ordered_json sizes;
  for (const mesh::Axis axis : mesh::kAxes) sizes[name_of(axis)] = mesh[axis];
  nlohmann::ordered_json fields{{"parameters", model.num_elements()},
                                {"world_size", world.size()},
                                {"mesh", sizes},
                                {"backend", world.backend()},
                                {"bitwise_class", reproducibility_class(config, cpus)},
                                {"train_samples", split.train.size()},
                                {"validation_samples", split.validation.size()},
                                {"flops_per_token", model.training_flops_per_token()}};
  for (const parallel::MemoryPart& part : parallel::kMemoryParts) {
    fields["memory_predicted_bytes"][part.name] = memory.*part.bytes;
  }
  if (memory.host > 0) fields["host_memory_predicted_bytes"] = memory.host;
  if (const auto sent = sent_gradients(facts)) {
    fields["compression"] = {{"bytes", sent->compressed}, {"whole_bytes", sent->whole}};
  }
  const parallel::DataTraffic& traffic = plan.traffic;
  if (traffic != parallel::DataTraffic{}) {
    fields["units_per_step"] = {
        {"units", plan.units.num_units()},     {"shards", plan.units.num_shards()},
        {"gathers", traffic.gathers},          {"gather_bytes", traffic.gather_bytes},
        {"reductions", traffic.reductions},    {"reduction_bytes", traffic.reduction_bytes},
        {"max_gathered", traffic.max_gathered}};
  }
  return fields;
}

}  // namespace dtrain::job

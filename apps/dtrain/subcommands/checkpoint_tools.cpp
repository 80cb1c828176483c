// dtrain checkpoint list, inspect, verify and diff, which only read checkpoints.
#include <fmt/ranges.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/text/text.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/compare.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "tool.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
namespace format = checkpoint::format;
namespace store = checkpoint::store;
using base::ErrorKind;
using base::fail;

struct PathPair {
  std::string a;
  std::string b;
};

std::string plural(std::int64_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::string mesh_text(const config::MeshShape& mesh) {
  return fmt::format("{} ({})", plural(mesh.num_ranks(), "rank"), mesh.text());
}

// "2026-11-21 16:40:00Z"
std::string time_of(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return "-";
  const auto seconds = std::chrono::system_clock::to_time_t(
      std::chrono::file_clock::to_sys(std::chrono::time_point_cast<std::chrono::seconds>(time)));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// The total size of the files in a folder.
std::int64_t bytes_in(const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    const std::uintmax_t size = entry->file_size(ignored);
    if (!ignored) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

std::string list_line(const std::string& path) {
  std::string facts;
  std::int64_t bytes = 0;  // without the manifest, as reported by the save and by inspect
  try {
    const format::Manifest manifest = store::read_manifest(path);
    facts = mesh_text(manifest.mesh);
    bytes = format::bytes_in(manifest.contents);
  } catch (const base::Error& error) {
    facts = error.what();
    bytes = bytes_in(path);
  }
  return fmt::format("{:<16} {:>10}  {}  {}\n", fs::path(path).filename().string(),
                     base::readable_bytes(bytes), time_of(fs::path(path) / store::kManifestName),
                     facts);
}

std::string final_line(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) return {};
  return fmt::format("{:<16} {:>10}  {}  model.safetensors\n", "final",
                     base::readable_bytes(static_cast<std::int64_t>(bytes)), time_of(path));
}

// The number of pieces of each tensor.
std::map<std::string, std::int64_t> count_pieces(const format::Contents& contents) {
  std::map<std::string, std::int64_t> count;
  for (const format::FileInfo& file : contents.files) {
    for (const format::PieceInfo& piece : file.pieces) ++count[piece.tensor];
  }
  return count;
}

std::string facts_text(const std::string& path, const format::Manifest& manifest) {
  const auto row = [](std::string_view name, const std::string& value) {
    return fmt::format("{:<10} {}\n", name, value);
  };
  return row("checkpoint", path) + row("step", std::to_string(manifest.step)) +
         row("samples", std::to_string(manifest.samples)) +
         row("tokens", std::to_string(manifest.tokens)) + row("layout", mesh_text(manifest.mesh)) +
         row("written by", manifest.run) +
         row("files", fmt::format("{}, {} bytes", manifest.contents.files.size(),
                                  format::bytes_in(manifest.contents)));
}

std::string tensors_text(const format::Contents& contents) {
  const auto pieces = count_pieces(contents);
  std::size_t width = std::string_view("tensor").size();
  for (const auto& [name, info] : contents.tensors) width = std::max(width, name.size());
  std::string text =
      fmt::format("\n{:<{}}  dtype  {:<20}  pieces  {:>14}\n", "tensor", width, "shape", "bytes");
  for (const auto& [name, info] : contents.tensors) {
    const auto found = pieces.find(name);
    text += fmt::format(
        "{:<{}}  {:<5}  {:<20}  {:>6}  {:>14}\n", name, width, format::name_of(info.dtype),
        fmt::format("({})", fmt::join(info.shape, ", ")), found == pieces.end() ? 0 : found->second,
        format::num_elements(info.shape) * format::size_of(info.dtype));
  }
  return text;
}

/// Totals of a verification.
struct Tally {
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::int64_t tensors = 0;
  std::int64_t damaged = 0;
};

// Runs f() and records its checkpoint errors.
template <typename F>
void note_damage(std::vector<std::string>& damage, F f) {
  try {
    f();
  } catch (const base::Error& error) {
    if (error.kind() != ErrorKind::checkpoint) throw;
    damage.emplace_back(error.what());
  }
}

// Verifies a checkpoint; returns one line per damaged file.
std::vector<std::string> verify_checkpoint(const std::string& path, Tally& tally) {
  std::vector<std::string> damage;
  note_damage(damage, [&] {
    const format::Manifest manifest = store::read_manifest(path);
    tally.tensors += std::ssize(manifest.contents.tensors);
    for (const format::FileInfo& file : manifest.contents.files) {
      ++tally.files;
      tally.bytes += file.bytes;
      note_damage(damage, [&] { store::verify_file(path, file); });
    }
  });
  return damage;
}

// Verifies one checkpoint. Ignores one that a running job has removed meanwhile: the job renames a
// checkpoint before it removes the files.
void verify_one(const std::string& path, bool is_of_run, Tally& tally) {
  Tally own;
  const std::vector<std::string> damage = verify_checkpoint(path, own);
  if (is_of_run && !damage.empty() && !fs::exists(base::link_status(path))) {
    print(fmt::format("{}: removed by a running job meanwhile\n", path));
    return;
  }
  for (const std::string& line : damage) print(line + "\n");
  tally.files += own.files;
  tally.bytes += own.bytes;
  tally.tensors += own.tensors;
  tally.damaged += std::ssize(damage);
}

// Rejects a single file of a checkpoint, since the manifest has its checksum.
void reject_file_of_checkpoint(const std::string& path) {
  const fs::path folder = base::resolved_path(path).parent_path();
  if (!base::path_exists(folder / store::kManifestName)) return;
  fail(ErrorKind::checkpoint,
       "{}: it is part of a checkpoint, and its checksum is in the manifest; verify the whole "
       "checkpoint: dtrain checkpoint verify {}",
       path, folder.string());
}

void verify_model_file(const std::string& path, Tally& tally) {
  std::vector<std::string> damage;
  note_damage(damage, [&] {
    ++tally.files;
    const auto file = format::WeightFile::open(path);
    tally.bytes += file.num_bytes();
    tally.tensors += std::ssize(file.tensors());
    if (!file.verify_checksums()) {
      print(fmt::format("{}: it has no checksums: its header was checked, its values were not\n",
                        path));
    }
  });
  for (const std::string& line : damage) print(line + "\n");
  tally.damaged += std::ssize(damage);
}

// path: a checkpoint, the folder of a model file, or a run, including its final model.
void verify_folder(const std::string& path, Tally& tally) {
  const std::string inside = store::model_file_in(path);
  if (!inside.empty() && store::weights_at(path) == inside) {
    verify_model_file(inside, tally);
    return;
  }
  const std::string final = store::final_model(store::run_at(path));
  const bool has_final = base::path_exists(final);
  for (const std::string& checkpoint :
       has_final ? store::checkpoints_of_run(path) : store::checkpoints_at(path)) {
    verify_one(checkpoint, checkpoint != path, tally);
  }
  if (has_final) verify_model_file(final, tally);
}

std::string difference_text(const store::TensorDifference& difference) {
  const std::string place = difference.index.empty()
                                ? ""
                                : fmt::format(" first at ({})", fmt::join(difference.index, ", "));
  return fmt::format("{} differs{}: {} and {}; {}, by at most {:.6g} (relative: {:.6g})\n",
                     difference.tensor, place, difference.value_in_a, difference.value_in_b,
                     plural(difference.num_elements, "element"), difference.largest_absolute,
                     difference.largest_relative);
}

std::string lines_of(const std::vector<std::string>& tensors, const std::string& what) {
  std::string text;
  for (const std::string& tensor : tensors) text += fmt::format("{} {}\n", tensor, what);
  return text;
}

std::string comparison_text(const store::Comparison& result, const std::string& a,
                            const std::string& b) {
  std::string text;
  for (const auto& difference : result.differences) text += difference_text(difference);
  text += lines_of(result.of_other_shape, "has different shapes");
  text += lines_of(result.only_in_a, "is only in " + a);
  text += lines_of(result.only_in_b, "is only in " + b);
  const std::int64_t different = std::ssize(result.differences) + std::ssize(result.of_other_shape);
  if (result.is_equal()) return fmt::format("equal: {}\n", plural(result.num_tensors, "tensor"));
  return text +
         fmt::format("{} of {} in both differ\n", different, plural(result.num_tensors, "tensor"));
}

int list_checkpoints(const std::string& path) {
  const std::string run = store::run_at(path);
  std::string text;
  for (const std::string& each : store::checkpoints_of_run(run)) text += list_line(each);
  text += final_line(store::final_model(run));
  print(text.empty() ? fmt::format("{}: no checkpoint yet\n", run) : text);
  return 0;
}

int inspect_checkpoint(const std::string& path) {
  const std::string folder = store::checkpoints_at(path).front();
  const format::Manifest manifest = store::read_manifest(folder);
  print(facts_text(folder, manifest) + tensors_text(manifest.contents));
  return 0;
}

int verify_checkpoints(const std::string& path) {
  Tally tally;
  if (std::error_code error; fs::is_regular_file(path, error)) {
    reject_file_of_checkpoint(path);
    verify_model_file(path, tally);
  } else {
    verify_folder(path, tally);
  }
  if (tally.damaged > 0) {
    fail(ErrorKind::checkpoint, "{}: {} damaged; do not load {}", path,
         plural(tally.damaged, "file"), tally.damaged == 1 ? "it" : "them");
  }
  if (tally.files == 0) {
    fail(ErrorKind::checkpoint, "{}: a running job has removed all checkpoints meanwhile; retry",
         path);
  }
  print(fmt::format("ok: {}, {} bytes, {}\n", plural(tally.files, "file"), tally.bytes,
                    plural(tally.tensors, "tensor")));
  return 0;
}

int diff_checkpoints(const PathPair& paths) {
  store::Reader a(store::checkpoints_at(paths.a).front());
  store::Reader b(store::checkpoints_at(paths.b).front());
  const store::Comparison result = store::compare(a, b);
  print(comparison_text(result, a.path(), b.path()));
  return result.is_equal() ? 0 : static_cast<int>(ErrorKind::numerics);
}

constexpr const char* kPaths =
    "PATH, A and B are checkpoints (RUN/checkpoints/step-N) or run folders; a run folder stands "
    "for its newest checkpoint.";

}  // namespace

void add_checkpoint_tools(CLI::App& parent, Action& action) {
  using AddPath = void(CLI::App&, std::string&);
  const AddPath* const add_run = [](CLI::App& app, std::string& path) {
    app.add_option("RUN", path, "run folder")->required();
  };
  const AddPath* const add_path = [](CLI::App& app, std::string& path) {
    app.add_option("PATH", path, "checkpoint or run folder")->required();
  };
  add_tool(parent, "list", "list the checkpoints of a run, newest first, and final/", action,
           add_run, list_checkpoints);
  add_tool(parent, "inspect", "print step, data position, layout and all tensors of a checkpoint",
           action, add_path, inspect_checkpoint)
      .footer(kPaths);
  add_tool(parent, "verify",
           "read every byte and compare it with the checksums; for a run folder, check all "
           "checkpoints and final/; exit status 6 if a file is damaged",
           action, add_path, verify_checkpoints)
      .footer(
          "PATH may also be a model file or its folder. Prints one line per damaged file, or "
          "\"ok\".");
  add_tool<PathPair>(
      parent, "diff",
      "compare all tensors of two checkpoints, which may have different layouts; exit status 7 if "
      "they differ",
      action,
      [](CLI::App& app, PathPair& paths) {
        app.add_option("A", paths.a, "checkpoint or run folder")->required();
        app.add_option("B", paths.b, "checkpoint or run folder")->required();
      },
      diff_checkpoints)
      .footer(kPaths);
}

}  // namespace dtrain::app

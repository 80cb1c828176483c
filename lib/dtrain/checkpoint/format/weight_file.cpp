#include "dtrain/checkpoint/format/weight_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/checkpoint/format/internal/strict_json.h"
#include "dtrain/checkpoint/format/internal/torch_file.h"
#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/unsupported_models.h"

namespace dtrain::checkpoint::format {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;

constexpr base::FileRole kWeightFileRole{ErrorKind::checkpoint, "model file",
                                         "give a safetensors file or a file of torch.save"};

constexpr std::string_view kIndexKey = "weight_map";
constexpr int kIndexDepth = 3;  // file, weight_map, shard

// Attribute names under which wrapper modules hold the model: torch.compile, DataParallel and DDP,
// FSDP, activation checkpointing.
constexpr std::array<std::string_view, 4> kWrappers{"_orig_mod", "module", "_fsdp_wrapped_module",
                                                    "_checkpoint_wrapped_module"};

std::vector<config::HuggingFaceModule> hugging_face_modules() {
  std::vector<config::HuggingFaceModule> modules;
  for (const config::Family* family : config::families()) {
    const config::HuggingFaceModule& module = family->hugging_face.module;
    if (!module.prefix.empty()) modules.push_back(module);
  }
  return modules;
}

// True if the name's prefix is that of a module.
bool is_in_module(std::string_view name) {
  return std::ranges::any_of(hugging_face_modules(), [&](const config::HuggingFaceModule& module) {
    return module.holds(name);
  });
}

std::string_view text_of(const base::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

struct ForeignFormat {
  std::string_view bytes;
  std::string_view what;
  std::string_view advice;
  std::size_t at = 0;
};

constexpr std::string_view kSaveAnew =
    "save it again in Python: torch.save(torch.load(FILE, map_location='cpu'), NEW_FILE)";

constexpr std::string_view kDecompress = "decompress it first";
constexpr std::string_view kUnpack = "unpack it first";
constexpr std::string_view kGiveSource = "give the weights that it was converted from";
constexpr std::string_view kSaveSafetensors = "save the weights as a safetensors file";

// The first pickle of torch.save before PyTorch 1.6 is a number.
constexpr ForeignFormat kForeignFormats[] = {
    {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19",
     "is in the format of torch.save before PyTorch 1.6", kSaveAnew},
    {"GGUF", "is in the GGUF format", config::kConvertGguf},
    {"lmgg", "is in the GGML format", kGiveSource},
    {"tjgg", "is in the GGML format", kGiveSource},
    {"TFL3", "is in the TensorFlow Lite format", kGiveSource, 4},
    {"\x89HDF", "is in the HDF5 format", kSaveSafetensors},
    {"\x93NUMPY", "is a NumPy array", kSaveSafetensors},
    {"PK\x05\x06", "is an empty zip archive", "give a file of weights"},
    {"\x1f\x8b", "is gzip-compressed", kDecompress},
    {"\xfd"
     "7zXZ",
     "is xz-compressed", kDecompress},
    {"BZh", "is bzip2-compressed", kDecompress},
    {"\x28\xb5\x2f\xfd", "is zstd-compressed", kDecompress},
    {"ustar", "is a tar archive", kUnpack, 257},
    {"version https://git-lfs", "is a Git LFS pointer, not the file itself",
     "fetch it: git lfs pull"}};

// The length of a safetensors file's header may begin as another format does.
bool begins_as_safetensors(std::string_view text) {
  std::uint64_t length = 0;
  if (text.size() <= kLengthBytes || text[kLengthBytes] != '{') return false;
  std::memcpy(&length, text.data(), kLengthBytes);
  return length <= kMaxHeaderBytes;
}

void refuse_foreign_format(const base::MappedFile& file) {
  if (begins_as_safetensors(text_of(file))) return;
  for (const ForeignFormat& format : kForeignFormats) {
    if (text_of(file).size() < format.at) continue;
    if (!text_of(file).substr(format.at).starts_with(format.bytes)) continue;
    base::fail(ErrorKind::checkpoint, "'{}' {}; {}", file.path(), format.what, format.advice);
  }
  if (text_of(file).starts_with('\x80')) {
    base::fail(ErrorKind::checkpoint,
               "'{}' is a pickle that torch.save did not write; save the weights alone: "
               "torch.save(model.state_dict(), NEW_FILE)",
               file.path());
  }
}

// A safetensors header length may begin with the byte of a brace, but ends with 0.
bool is_index(const base::MappedFile& file) {
  const std::string_view text = text_of(file);
  return text.starts_with('{') && text.substr(0, kLengthBytes).back() != '\0' &&
         text.find(kIndexKey) != std::string_view::npos;
}

std::string without_wrappers(std::string_view name, std::set<std::string_view>& left_out) {
  std::vector<std::string_view> kept;
  const std::vector<std::string_view> parts = base::split(name, '.');
  for (const std::string_view& part : parts) {
    const auto* const wrapper = std::ranges::find(kWrappers, part);
    if (wrapper == kWrappers.end() || &part == &parts.back()) {
      kept.push_back(part);
    } else {
      left_out.insert(*wrapper);
    }
  }
  return fmt::format("{}", fmt::join(kept, "."));
}

}  // namespace

WeightFile WeightFile::open(const std::string& path) {
  WeightFile result;
  result.path_ = path;
  result.add_file(path);
  result.leave_out_average_count();
  std::vector<std::string> original;
  for (const TensorView& tensor : result.tensors_) original.push_back(tensor.name);
  result.leave_out_wrappers();
  result.leave_out_common_prefix();
  result.add_module_prefix();
  result.refuse_equal_names(original);
  return result;
}

void WeightFile::add_file(const std::string& path) {
  auto file = base::MappedFile::open(path, kWeightFileRole);
  if (is_torch_file(file.bytes())) return add_torch_file(std::move(file));
  if (path == path_ && is_index(file)) return add_shards(file);
  refuse_foreign_format(file);
  const SafetensorsFile& added = safetensors_.emplace_back(SafetensorsFile::parse(std::move(file)));
  tensors_.insert(tensors_.end(), added.tensors().begin(), added.tensors().end());
  if (metadata_.empty()) metadata_ = added.metadata();
}

void WeightFile::add_torch_file(base::MappedFile file) {
  TorchWeights weights = read_torch_file(file.bytes(), file.path());
  tensors_.insert(tensors_.end(), weights.tensors.begin(), weights.tensors.end());
  if (!weights.key.empty()) {
    notes_.push_back(fmt::format("read the weights under '{}'{}", weights.key,
                                 weights.beside.empty()
                                     ? ""
                                     : fmt::format(" and ignored the tensors beside it, {}",
                                                   base::list_text(weights.beside))));
  }
  if (!weights.skipped.empty()) {
    notes_.push_back(fmt::format("left out {}", base::list_text(weights.skipped)));
  }
  torch_files_.push_back(std::move(file));
}

void WeightFile::add_shards(const base::MappedFile& index) {
  const auto refuse = [&](std::string_view found) {
    base::fail(
        ErrorKind::checkpoint,
        "shard index '{}' {}; give the index of a complete model, or save the model in one file",
        index.path(), found);
  };
  const nlohmann::json root =
      parse_strictly(text_of(index), kIndexDepth,
                     [&](std::string_view found) { refuse(fmt::format("has content {}", found)); });
  const auto map = root.find(kIndexKey);
  if (map == root.end() || !map->is_object()) refuse("has no weight_map");
  if (map->empty()) refuse("has an empty weight_map");
  std::set<std::string> names;
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    // An index must not refer to files in other folders.
    if (file.empty() || fs::path(file).filename() != file || file == fs::path(path_).filename()) {
      refuse(fmt::format("names no file in its own folder for tensor '{}'", name));
    }
    names.insert(name);
    shards.insert(file);
  }
  for (const std::string& shard : shards) {
    add_file((fs::path(index.path()).parent_path() / shard).string());
  }
  for (const TensorView& tensor : tensors_) names.erase(tensor.name);
  if (!names.empty())
    refuse(fmt::format("lists tensor '{}', but no shard contains it", *names.begin()));
}

void WeightFile::leave_out_average_count() {
  constexpr std::string_view kCount = "n_averaged";  // of torch.optim.swa_utils.AveragedModel
  const auto num_left_out = std::erase_if(tensors_, [&](const TensorView& tensor) {
    return base::split(tensor.name, '.').back() == kCount;  // under any wrapper
  });
  if (num_left_out > 0) notes_.push_back(fmt::format("left out {}", kCount));
}

void WeightFile::leave_out_wrappers() {
  std::set<std::string_view> left_out;
  for (TensorView& tensor : tensors_) tensor.name = without_wrappers(tensor.name, left_out);
  if (left_out.empty()) return;
  notes_.push_back(
      fmt::format("removed the prefix '{}.' from tensor names", fmt::join(left_out, ".' and '")));
}

void WeightFile::leave_out_common_prefix() {
  if (tensors_.size() < 2 || has_storage_shapes()) return;
  const std::string& first = tensors_.front().name;
  std::size_t length = 0;
  for (std::size_t dot = first.find('.'); dot != std::string::npos;
       dot = first.find('.', dot + 1)) {
    const std::string_view prefix = std::string_view(first).substr(0, dot + 1);
    const bool is_common = std::ranges::all_of(tensors_, [&](const TensorView& tensor) {
      return tensor.name.starts_with(prefix) &&
             !is_in_module(std::string_view(tensor.name).substr(length));
    });
    if (!is_common) break;
    length = prefix.size();
  }
  if (length == 0) return;
  notes_.push_back(
      fmt::format("removed the prefix '{}' from tensor names", first.substr(0, length)));
  for (TensorView& tensor : tensors_) tensor.name.erase(0, length);
}

// A base model (LlamaModel, GPT2Model, ...) is that module alone.
void WeightFile::add_module_prefix() {
  for (const config::HuggingFaceModule& module : hugging_face_modules()) {
    const bool is_base_model = std::ranges::all_of(
        tensors_, [&](const TensorView& tensor) { return module.lacks_prefix(tensor.name); });
    if (!is_base_model || find(fmt::format("{}weight", module.children.front())) == nullptr) {
      continue;
    }
    notes_.push_back(fmt::format("added the prefix '{}' to tensor names", module.prefix));
    for (TensorView& tensor : tensors_) tensor.name.insert(0, module.prefix);
    return;
  }
}

void WeightFile::refuse_equal_names(std::span<const std::string> original) const {
  std::map<std::string_view, std::string_view> seen;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto [found, is_new] = seen.emplace(tensors_[i].name, original[i]);
    if (is_new) continue;
    if (found->second == original[i]) {
      base::fail(ErrorKind::checkpoint,
                 "model file '{}': two of its shards contain tensor '{}'; save the model again",
                 path_, original[i]);
    }
    base::fail(ErrorKind::checkpoint,
               "model file '{}': '{}' and '{}' both map to tensor '{}'; save only one of them",
               path_, found->second, original[i], found->first);
  }
}

// Names and shapes do not tell: wrappers that hold a model as `model` have such names, too.
bool WeightFile::has_storage_shapes() const noexcept { return metadata_.contains(kShapesKey); }

void WeightFile::explain_errors(const std::function<void()>& read) const {
  try {
    read();
  } catch (const base::Error& error) {
    if (error.kind() != ErrorKind::checkpoint) throw;
    (void)verify_checksums();  // a name or shape that is wrong may be a damaged one
    if (notes_.empty()) throw;
    base::fail(error.kind(), "{} (dtrain {})", error.what(), fmt::join(notes_, "; "));
  }
}

const TensorView* WeightFile::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(tensors_, name, &TensorView::name);
  return found == tensors_.end() ? nullptr : &*found;
}

std::int64_t WeightFile::num_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const SafetensorsFile& file : safetensors_) bytes += std::ssize(file.bytes());
  for (const base::MappedFile& file : torch_files_) bytes += std::ssize(file.bytes());
  return bytes;
}

bool WeightFile::verify_checksums() const {
  bool have_all = true;
  for (const SafetensorsFile& file : safetensors_) {
    const bool has_it = verify_checksum(file);
    have_all = have_all && has_it;
  }
  for (const base::MappedFile& file : torch_files_) {
    const bool has_it = verify_torch_file(file.bytes(), file.path());
    have_all = have_all && has_it;
  }
  return have_all;
}

}  // namespace dtrain::checkpoint::format

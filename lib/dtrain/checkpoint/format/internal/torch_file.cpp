#include "dtrain/checkpoint/format/internal/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/checkpoint/format/internal/pickle.h"
#include "dtrain/checkpoint/format/internal/zip_archive.h"

namespace dtrain::checkpoint::format {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t kMaxPickleBytes = std::size_t{16}
                                        << 20;  // that of a state dictionary takes about 1 KB
constexpr std::size_t kMaxKeyBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxRank = 64;  // PyTorch's own

// Keys under which training scripts save the model's state dictionary.
constexpr std::array<std::string_view, 4> kModelKeys{"model", "state_dict", "model_state_dict",
                                                     "module"};

constexpr std::array<std::pair<std::string_view, Dtype>, 10> kStorages{
    {{"torch FloatStorage", Dtype::f32},
     {"torch DoubleStorage", Dtype::f64},
     {"torch HalfStorage", Dtype::f16},
     {"torch BFloat16Storage", Dtype::bf16},
     {"torch LongStorage", Dtype::i64},
     {"torch IntStorage", Dtype::i32},
     {"torch ShortStorage", Dtype::i16},
     {"torch CharStorage", Dtype::i8},
     {"torch ByteStorage", Dtype::u8},
     {"torch BoolStorage", Dtype::boolean}}};

constexpr std::string_view kAdvice = "save the weights alone: torch.save(model.state_dict(), FILE)";
constexpr std::string_view kCopyAgain = "the file is damaged: copy it again";
constexpr std::string_view kMakePlain =
    "make it a plain tensor before saving: dequantize(), to_dense(), resolve_conj(), "
    "resolve_neg(), float()";

/// The entries of a torch.save archive, all in one folder of any name.
class TorchArchive {
 public:
  TorchArchive(std::span<const std::byte> bytes, const Refuse& refuse)
      : entries_(zip_entries(bytes, refuse)) {
    std::ranges::sort(entries_, {}, &ZipEntry::name);
    const auto twice = std::ranges::adjacent_find(entries_, {}, &ZipEntry::name);
    if (twice != entries_.end()) {
      refuse(fmt::format("is a zip archive with two entries '{}'; save it again with torch.save",
                         base::printable(twice->name)));
    }
    find_folder(refuse);
    if (find("constants.pkl") != nullptr) {
      refuse(
          "is TorchScript; save its weights alone: torch.save(torch.jit.load(FILE).state_dict(), "
          "NEW_FILE)");
    }
    if (text_of("byteorder") == "big") {
      refuse(
          "was written on a big-endian machine; load it with torch.load on a little-endian one and "
          "save its weights there");
    }
  }

  [[nodiscard]] const ZipEntry* find(std::string_view name) const {
    const std::string whole = fmt::format("{}{}", folder_, name);
    const auto found = std::ranges::lower_bound(entries_, whole, {}, &ZipEntry::name);
    return found == entries_.end() || found->name != whole ? nullptr : &*found;
  }

 private:
  void find_folder(const Refuse& refuse) {
    constexpr std::string_view kPickle = "/data.pkl";
    for (const ZipEntry& entry : entries_) {
      if (!entry.name.ends_with(kPickle)) continue;
      if (!folder_.empty()) {
        refuse("is a zip archive with two data.pkl entries; save it again with torch.save");
      }
      folder_ = entry.name.substr(0, entry.name.size() - kPickle.size() + 1);
    }
    if (folder_.empty()) {
      refuse(
          "is a zip archive that torch.save did not write: it has no uncompressed data.pkl; give a "
          "file of torch.save or a safetensors file");
    }
  }

  [[nodiscard]] std::string_view text_of(std::string_view name) const {
    const ZipEntry* const entry = find(name);
    if (entry == nullptr) return {};
    return {reinterpret_cast<const char*>(entry->bytes.data()), entry->bytes.size()};
  }

  std::vector<ZipEntry> entries_;  // sorted by name
  std::string_view folder_;        // with the slash
};

/// Reads the tensors that a pickle describes.
class TensorReader {
 public:
  TensorReader(const TorchArchive& archive, const Pickle& pickle, const Refuse& refuse)
      : archive_(archive), pickle_(pickle), refuse_(refuse) {}

  /// Returns the arguments of the call that rebuilds a plain tensor, unwrapping calls for
  /// parameters and subclasses; null if the value is not a tensor.
  [[nodiscard]] const PickleValue* call_of(const PickleValue& value) const {
    const std::string_view callable = pickle_.callable(value);
    if (callable.starts_with("torch._utils _rebuild_parameter")) {
      const PickleValue* const data = pickle_.argument(value, 0);
      return data == nullptr || data->kind != Kind::object ? nullptr : tensor_call(*data);
    }
    return tensor_call(value);
  }

  [[nodiscard]] TensorView read(const std::string& name, const PickleValue& value) const {
    const PickleValue& arguments = *call_of(value);
    constexpr std::size_t kFewest = 4;
    if (arguments.kind == Kind::object) {
      refuse_tensor(name, fmt::format("is made by '{}'", pickle_.callable(arguments)), kMakePlain);
    }
    if (arguments.kind != Kind::sequence || arguments.items.size() < kFewest) refuse_damage(name);
    const auto part = [&](std::size_t i) -> const PickleValue& {
      return pickle_.at(arguments.items[i]);
    };
    TensorView tensor = storage_of(name, part(0));
    tensor.shape = sizes_in(name, part(2));
    tensor.strides = sizes_in(name, part(3));
    if (part(1).kind != Kind::integer || part(1).integer < 0) refuse_damage(name);
    // Metadata such as {"neg": True} means that values differ from the storage.
    constexpr std::size_t kMetadata = 6;
    const bool has_metadata = arguments.items.size() > kMetadata &&
                              part(kMetadata).kind == Kind::dict && !part(kMetadata).items.empty();
    if (has_metadata) refuse_tensor(name, "is a negated or conjugated view", kMakePlain);
    cut(tensor, part(1).integer);
    return tensor;
  }

 private:
  // found: of text that a file brings.
  [[noreturn]] void refuse_tensor(const std::string& name, std::string_view found,
                                  std::string_view advice) const {
    refuse_(fmt::format("has a tensor '{}' that {}; {}", base::printable(name),
                        base::printable(found), advice));
    __builtin_unreachable();
  }

  [[noreturn]] void refuse_damage(const std::string& name) const {
    refuse_tensor(name, "does not fit its storage", kCopyAgain);
  }

  // Returns the arguments of _rebuild_tensor_v2: storage, offset, sizes, strides, ...
  [[nodiscard]] const PickleValue* tensor_call(const PickleValue& value) const {
    const std::string_view callable = pickle_.callable(value);
    if (callable == "torch._utils _rebuild_tensor_v2" ||
        callable == "torch._utils _rebuild_tensor") {
      return &pickle_.at(value.items[1]);
    }
    // A tensor with attributes, as a buffer has: (function, class, arguments, attributes)
    if (callable != "torch._tensor _rebuild_from_type_v2") {
      return callable.starts_with("torch._utils _rebuild") ? &value : nullptr;
    }
    const PickleValue* const function = pickle_.argument(value, 0);
    const PickleValue* const arguments = pickle_.argument(value, 2);
    const bool is_plain = function != nullptr && arguments != nullptr &&
                          function->text == "torch._utils _rebuild_tensor_v2";
    return is_plain ? arguments : &value;
  }

  // Returns a tensor without shape over its whole storage ("storage", class, key, device,
  // elements).
  [[nodiscard]] TensorView storage_of(const std::string& name, const PickleValue& value) const {
    constexpr std::size_t kParts = 5;
    if (value.kind != Kind::persistent) refuse_damage(name);
    const PickleValue& id = pickle_.at(value.items[0]);
    if (id.kind != Kind::sequence || id.items.size() < kParts) refuse_damage(name);
    const std::string& type = pickle_.at(id.items[1]).text;
    const auto* const known =
        std::ranges::find(kStorages, type, &std::pair<std::string_view, Dtype>::first);
    const std::string& key = pickle_.at(id.items[2]).text;
    if (known == kStorages.end()) {
      refuse_tensor(name, fmt::format("lies in a storage of the type '{}'", type), kMakePlain);
    }
    if (key.size() > kMaxKeyBytes) refuse_damage(name);
    const ZipEntry* const entry = archive_.find("data/" + key);
    if (entry == nullptr) {
      refuse_tensor(name,
                    fmt::format("needs the entry 'data/{}', which is missing or compressed", key),
                    "save the file again with torch.save");
    }
    return {.name = name, .dtype = known->second, .bytes = entry->bytes};
  }

  [[nodiscard]] std::vector<std::int64_t> sizes_in(const std::string& name,
                                                   const PickleValue& value) const {
    if (value.kind != Kind::sequence || value.items.size() > kMaxRank) refuse_damage(name);
    std::vector<std::int64_t> sizes;
    for (const std::size_t item : value.items) {
      const PickleValue& size = pickle_.at(item);
      if (size.kind != Kind::integer || size.integer < 0) refuse_damage(name);
      sizes.push_back(size.integer);
    }
    return sizes;
  }

  // Narrows the bytes from the whole storage to those of the tensor.
  void cut(TensorView& tensor, std::int64_t offset) const {
    if (tensor.shape.size() != tensor.strides.size()) refuse_damage(tensor.name);
    const bool is_empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    const std::int64_t available =
        std::ssize(tensor.bytes) / size_of(tensor.dtype);  // elements of the storage
    std::int64_t last = offset;
    for (std::size_t dim = 0; dim < tensor.shape.size() && !is_empty; ++dim) {
      std::int64_t reach = 0;
      if (__builtin_mul_overflow(tensor.shape[dim] - 1, tensor.strides[dim], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        refuse_damage(tensor.name);
      }
    }
    if (offset > available || (!is_empty && last >= available) ||
        !bytes_of(tensor.dtype, tensor.shape)) {
      refuse_damage(tensor.name);
    }
    const auto element = static_cast<std::size_t>(size_of(tensor.dtype));
    const auto count = static_cast<std::size_t>(is_empty ? 0 : last - offset + 1);
    tensor.bytes =
        tensor.bytes.subspan(static_cast<std::size_t>(offset) * element, count * element);
  }

  const TorchArchive& archive_;
  const Pickle& pickle_;
  const Refuse& refuse_;
};

/// Finds the state dictionary in what a file holds.
class StateFinder {
 public:
  StateFinder(const Pickle& pickle, const TensorReader& reader, const Refuse& refuse)
      : pickle_(pickle), reader_(reader), refuse_(refuse) {}

  /// Sets `key` if the state dictionary stands under one.
  [[nodiscard]] const PickleValue& find(std::string& key) const {
    const PickleValue& root = pickle_.root();
    refuse_object(root, "");
    if (root.kind != Kind::dict) refuse_(fmt::format("holds no dictionary; {}", kAdvice));
    const PickleValue* state = &root;
    for_each(root, [&](const std::string& name, const PickleValue& value) {
      if (std::ranges::find(kModelKeys, name) == kModelKeys.end()) return;
      if (!holds_tensors(value) && !is_foreign_object(value)) return;
      if (!key.empty()) {
        refuse_(fmt::format("holds models under '{}' and '{}'; save one of them", key, name));
      }
      key = name;
      state = &value;
    });
    refuse_object(*state, key);
    refuse_unnamed(*state);
    return *state;
  }

  /// The keys beside `key` under which a tensor or a dictionary of tensors stands.
  [[nodiscard]] std::vector<std::string> tensors_beside(const std::string& key) const {
    std::vector<std::string> found;
    for_each(pickle_.root(), [&](const std::string& name, const PickleValue& value) {
      const bool is_or_holds = reader_.call_of(value) != nullptr || holds_tensors(value);
      if (name != key && is_or_holds) found.push_back(base::printable(name));
    });
    return found;
  }

  /// Calls f(key, value) for each entry of a dictionary whose key is text.
  template <typename F>
  void for_each(const PickleValue& dict, F f) const {
    for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& key = pickle_.at(dict.items[i]);
      if (key.kind == Kind::text) f(key.text, pickle_.at(dict.items[i + 1]));
    }
  }

 private:
  // for_each passes over keys that are no text.
  void refuse_unnamed(const PickleValue& state) const {
    for (std::size_t i = 0; i + 1 < state.items.size(); i += 2) {
      const PickleValue& key = pickle_.at(state.items[i]);
      const bool is_tensor = reader_.call_of(pickle_.at(state.items[i + 1])) != nullptr;
      if (key.kind == Kind::text || !is_tensor) continue;
      refuse_(fmt::format("holds a tensor under {}, where a name is expected; {}",
                          key.kind == Kind::integer ? fmt::format("the key {}", key.integer)
                                                    : "a key that is not a string",
                          kAdvice));
    }
  }

  // Such a key may hold settings instead.
  [[nodiscard]] bool holds_tensors(const PickleValue& value) const {
    bool found = false;
    if (value.kind == Kind::dict) {
      for_each(value, [&](const std::string& /*key*/, const PickleValue& each) {
        found = found || reader_.call_of(each) != nullptr;
      });
    }
    return found;
  }

  // Returns true for an object that only a class outside PyTorch's tensor functions can create.
  [[nodiscard]] bool is_foreign_object(const PickleValue& value) const {
    const std::string_view callable = pickle_.callable(value);
    return value.kind == Kind::object && !callable.starts_with("torch._utils ") &&
           !callable.starts_with("torch._tensor ");
  }

  // A pickled module needs the code of its class, which dtrain does not run.
  void refuse_object(const PickleValue& value, const std::string& key) const {
    if (!is_foreign_object(value)) return;
    const std::string_view type = pickle_.callable(value);
    refuse_(fmt::format(
        "holds a pickled object of the class '{}'{}, which dtrain does not run; save its weights "
        "alone: torch.save(torch.load(FILE, weights_only=False){}.state_dict(), NEW_FILE)",
        base::printable(type), key.empty() ? "" : fmt::format(" under '{}'", key),
        key.empty() ? "" : fmt::format("['{}']", key)));
  }

  const Pickle& pickle_;
  const TensorReader& reader_;
  const Refuse& refuse_;
};

Refuse refuse_file(const std::string& path) {
  return [&path](std::string_view found) {
    base::fail(base::ErrorKind::checkpoint, "PyTorch file '{}' {}", path, found);
  };
}

// Rejects duplicate keys, which would allow unlimited memory for names.
void check_key(const std::string& key, std::set<std::string_view>& seen, const Refuse& refuse) {
  if (key.size() > kMaxKeyBytes) {
    refuse(
        fmt::format("has a key of {} bytes, more than {}; {}", key.size(), kMaxKeyBytes, kAdvice));
  }
  if (!seen.insert(key).second) {
    refuse(fmt::format("is damaged: its dictionary has the key '{}' twice; copy it again",
                       base::printable(key)));
  }
}

}  // namespace

bool is_torch_file(std::span<const std::byte> bytes) {
  constexpr std::string_view kZip("PK\3\4", 4);
  return bytes.size() >= kZip.size() &&
         std::ranges::equal(bytes.first(kZip.size()), std::as_bytes(std::span(kZip)));
}

TorchWeights read_torch_file(std::span<const std::byte> bytes, const std::string& path) {
  const Refuse refuse = refuse_file(path);
  const TorchArchive archive(bytes, refuse);
  const ZipEntry& entry = *archive.find("data.pkl");
  if (entry.bytes.size() > kMaxPickleBytes) {
    refuse(fmt::format("holds {} beside its tensors; {}",
                       base::readable_bytes(std::ssize(entry.bytes)), kAdvice));
  }
  const Pickle pickle(entry.bytes, refuse);
  const TensorReader reader(archive, pickle, refuse);
  const StateFinder finder(pickle, reader, refuse);
  TorchWeights weights;
  std::set<std::string_view> seen;
  const PickleValue& state = finder.find(weights.key);
  if (!weights.key.empty()) weights.beside = finder.tensors_beside(weights.key);
  finder.for_each(state, [&](const std::string& key, const PickleValue& value) {
    check_key(key, seen, refuse);
    if (reader.call_of(value) == nullptr) {
      weights.skipped.push_back(base::printable(key));
    } else if (!is_printable(key)) {
      refuse(fmt::format("has a tensor '{}', whose name holds control characters; rename it",
                         base::printable(key)));
    } else {
      weights.tensors.push_back(reader.read(key, value));
    }
  });
  if (weights.tensors.empty()) {
    refuse(fmt::format("holds no tensors{}; {}; {}",
                       weights.key.empty() ? "" : fmt::format(" under '{}'", weights.key),
                       weights.skipped.empty()
                           ? "its dictionary has no names"
                           : fmt::format("its keys: {}", base::list_text(weights.skipped)),
                       kAdvice));
  }
  return weights;
}

bool verify_torch_file(std::span<const std::byte> bytes, const std::string& path) {
  return verify_crcs(bytes, refuse_file(path));
}

}  // namespace dtrain::checkpoint::format

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/internal/strict_json.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::format {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::size_t kMaxDims = 16;
constexpr std::size_t kMaxNameBytes = 1024;

// Rejects names that could lead out of the checkpoint's folder.
void check_file_name(const std::string& name, std::string_view where) {
  if (!is_printable(name)) {
    fail(ErrorKind::checkpoint, "{}: a file's name has control characters", where);
  }
  const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                     name.find_first_of("/\\") == std::string::npos;
  if (!plain) fail(ErrorKind::checkpoint, "{}: '{}' is not a valid file name", where, name);
}

void check_tensor(const std::string& name, const TensorInfo& tensor, std::string_view where) {
  const auto refuse = [&](const char* found) {
    fail(ErrorKind::checkpoint, "{}: tensor '{}' {}", where, name, found);
  };
  if (!is_printable(name)) {
    fail(ErrorKind::checkpoint, "{}: a tensor's name has control characters", where);
  }
  if (name.empty() || name.size() > kMaxNameBytes) refuse("has an empty or too long name");
  if (tensor.shape.size() > kMaxDims) refuse("has too many dimensions");
  if (!bytes_of(tensor.dtype, tensor.shape)) refuse("is too large");
}

// Sorts boxes by their begin in the first dim, so each is compared only with those it may overlap.
void check_disjoint(std::vector<const Box*> boxes, const std::string& name,
                    std::string_view where) {
  const auto begin = [](const Box& box) { return box.offsets.empty() ? 0 : box.offsets[0]; };
  const auto end = [](const Box& box) {
    return box.offsets.empty() ? 1 : box.offsets[0] + box.sizes[0];
  };
  std::sort(boxes.begin(), boxes.end(),
            [&](const Box* a, const Box* b) { return begin(*a) < begin(*b); });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size() && begin(*boxes[j]) < end(*boxes[i]); ++j) {
      if (are_disjoint(*boxes[i], *boxes[j])) continue;
      fail(ErrorKind::checkpoint, "{}: two pieces of tensor '{}' overlap", where, name);
    }
  }
}

}  // namespace

std::int64_t bytes_in(const Contents& contents) {
  std::int64_t bytes = 0;
  for (const FileInfo& file : contents.files) bytes += file.bytes;
  return bytes;
}

void merge(Contents& all, const Contents& part) {
  for (const auto& [name, tensor] : part.tensors) {
    const auto [known, added] = all.tensors.emplace(name, tensor);
    if (!added && known->second != tensor) {
      fail(ErrorKind::checkpoint, "ranks do not agree on the shape or dtype of tensor '{}'", name);
    }
  }
  all.files.insert(all.files.end(), part.files.begin(), part.files.end());
}

void check_contents(const Contents& contents, std::string_view where) {
  std::map<std::string, std::vector<const Box*>> boxes;
  for (const auto& [name, tensor] : contents.tensors) {
    check_tensor(name, tensor, where);
    boxes[name];
  }
  std::set<std::string> file_names;
  for (const FileInfo& file : contents.files) {
    check_file_name(file.name, where);
    if (!file_names.insert(file.name).second) {
      fail(ErrorKind::checkpoint, "{}: file '{}' is listed twice", where, file.name);
    }
    std::set<std::string_view> in_file;
    for (const PieceInfo& piece : file.pieces) {
      // A file has at most one tensor of a name.
      if (!in_file.insert(piece.tensor).second) {
        fail(ErrorKind::checkpoint, "{}: file '{}' has two pieces of tensor '{}'", where, file.name,
             piece.tensor);
      }
      const auto tensor = contents.tensors.find(piece.tensor);
      if (tensor == contents.tensors.end() || !fits(piece.box, tensor->second.shape)) {
        fail(ErrorKind::checkpoint, "{}: file '{}' has a piece outside tensor '{}'", where,
             file.name, piece.tensor);
      }
      boxes[piece.tensor].push_back(&piece.box);
    }
  }
  for (const auto& [name, list] : boxes) {
    check_disjoint(list, name, where);
    // The sum cannot overflow, since the boxes are disjoint and within the tensor.
    std::int64_t covered = 0;
    for (const Box* box : list) covered += num_elements(box->sizes);
    const std::int64_t needed = num_elements(contents.tensors.at(name).shape);
    if (covered != needed) {
      fail(ErrorKind::checkpoint, "{}: the pieces of tensor '{}' have {} elements, but it has {}",
           where, name, covered, needed);
    }
  }
}

}  // namespace dtrain::checkpoint::format

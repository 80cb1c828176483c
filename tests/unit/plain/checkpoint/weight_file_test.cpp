#include "dtrain/checkpoint/format/weight_file.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace dtrain::checkpoint::format::weight_file_test {
namespace {

using testing::TempFolder;
using Names = std::set<std::string>;

// The metadata of a checkpoint's file.
const Metadata kOfCheckpoint{{kShapesKey, "{}"}};

struct Read {
  Names names = {};
  bool has_storage_shapes = false;
};

// Writes tensors of one element under these names and reads them.
Read read(const Names& names, const Metadata& metadata = {}) {
  const std::vector<std::byte> bytes(sizeof(float));
  std::vector<TensorView> tensors;
  for (const std::string& name : names) {
    tensors.push_back({.name = name, .dtype = Dtype::f32, .shape = {1}, .bytes = bytes});
  }
  std::string content = plan_safetensors(tensors, metadata).header;
  content.append(names.size() * bytes.size(), '\0');
  const TempFolder folder;
  const WeightFile file = WeightFile::open(folder.write("model.safetensors", content));
  Read found{.has_storage_shapes = file.has_storage_shapes()};
  for (const TensorView& tensor : file.tensors()) found.names.insert(tensor.name);
  return found;
}

const Names kTied{"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                  "model.norm.weight", "model.rotary_emb.inv_freq"};

Names with_prefix(const std::string& prefix, const Names& names) {
  Names all;
  for (const std::string& name : names) all.insert(prefix + name);
  return all;
}

TEST_CASE("The module 'model' of Hugging Face's files stays in the names") {
  Names untied = kTied;
  untied.insert("lm_head.weight");
  for (const Names& names : {kTied, untied}) {
    const std::string wrapper = GENERATE("", "module.", "net.", "net._orig_mod.");
    const Read found = read(with_prefix(wrapper, names));
    CHECK(found.names == names);
    CHECK_FALSE(found.has_storage_shapes);
  }
}

TEST_CASE("The module 'model' is added to the names of a base model") {
  Names base;
  for (const std::string& name : kTied) base.insert(name.substr(std::string("model.").size()));
  const std::string wrapper = GENERATE("", "module.", "net.");
  const Read found = read(with_prefix(wrapper, base));
  CHECK(found.names == kTied);
  CHECK_FALSE(found.has_storage_shapes);
}

TEST_CASE("The module 'model' is not added to names of other models") {
  for (const Names& names : {Names{"embed_tokens.weight", "layers.0.mlp.up_proj.weight", "encoder"},
                             Names{"layers.0.weight", "norm.weight"}}) {
    CHECK(read(names).names == names);
  }
}

TEST_CASE("The module 'transformer' of GPT-2's files stays in the names, or is added") {
  const Names inner{"wte.weight", "wpe.weight", "h.0.ln_1.bias", "h.0.attn.bias", "ln_f.weight"};
  const Names names = with_prefix("transformer.", inner);
  const std::string wrapper = GENERATE("", "module.", "net._orig_mod.");
  CHECK(read(with_prefix(wrapper, names)).names == names);
  CHECK(read(with_prefix(wrapper, inner)).names == names);
  CHECK_FALSE(read(with_prefix(wrapper, names)).has_storage_shapes);
  Names untied = names;
  untied.insert("lm_head.weight");
  CHECK(read(with_prefix(wrapper, untied)).names == untied);
}

TEST_CASE("Names lose the common prefix of a wrapper, whose attribute may be 'model'") {
  const Names untied{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
  const Names gpt2{"transformer.wte.weight", "transformer.ln_f.weight"};
  for (const Names& names : {kTied, untied, gpt2, Names{"embed.weight", "encoder"}}) {
    for (const char* wrapper : {"net.", "model."}) {
      const Read found = read(with_prefix(wrapper, names));
      CHECK(found.names == names);
      CHECK_FALSE(found.has_storage_shapes);
    }
  }
}

TEST_CASE("Names of a checkpoint's file keep their prefix") {
  const Names gpt2{"transformer.wte.weight", "transformer.ln_f.weight"};
  for (const Names& inner : {kTied, gpt2, Names{"embed.weight", "encoder"}}) {
    const Names names = with_prefix("model.", inner);
    const Read found = read(names, kOfCheckpoint);
    CHECK(found.names == names);
    CHECK(found.has_storage_shapes);
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::format::weight_file_test

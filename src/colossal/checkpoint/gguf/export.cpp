#include "colossal/checkpoint/gguf/export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/family.h"
#include "colossal/checkpoint/gguf/latent.h"
#include "colossal/checkpoint/gguf/tensor_names.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
namespace {

/// Value of general.file_type for files that are mostly of one type.
struct FileType {
  const char* name;
  int64_t number;
};
constexpr FileType kFileTypes[] = {{"F32", 0},  {"F16", 1},   {"BF16", 32}, {"Q8_0", 7},
                                   {"Q4_0", 2}, {"Q4_K", 14}, {"Q6_K", 18}};

/// A tensor of the file and the source of its values.
struct Planned {
  formats::GgufTensor tensor;
  GgufChange change = GgufChange::None;
  /// Parts of the folder's tensor; of a stack those of each entry in order. Empty = use `factors`
  std::vector<Parts> entries;
  std::vector<float> factors;  ///< values from config.json
};

/// Returns the type to store a tensor in. One-dimensional tensors, routers and tables that are only looked up need more
/// precision.
const formats::GgufType* type_of(const formats::GgufTensor& tensor, const std::string& wanted) {
  if (tensor.shape.size() < 2 || tensor.name.ends_with(".ffn_gate_inp.weight")) return formats::gguf_type("F32");
  const formats::GgufType* type = formats::gguf_type(wanted);
  const bool is_outside = tensor.name == "token_embd.weight" || tensor.name == "output.weight";
  if (is_outside && (wanted == "Q4_0" || wanted == "Q4_K")) type = formats::gguf_type("Q6_K");
  if (tensor.name == "position_embd.weight")
    type = formats::gguf_type(wanted == "F16" || wanted == "BF16" ? wanted : "F32");
  for (const char* otherwise : {"Q8_0", "F16"})
    if (tensor.shape.back() % type->block != 0) type = formats::gguf_type(otherwise);
  return type;
}

/// Returns the shape of a tensor in the file; that of a stack has no entries yet.
std::vector<int64_t> shape_of(const ExternalPart& part, const GgufPlace& place, const GgufHeads& heads) {
  std::vector<int64_t> shape = part.external_shape();
  if (place.change == GgufChange::LatentKeys) return {heads.heads, shape.back(), heads.nope};
  if (place.change == GgufChange::LatentValues) return {heads.heads, heads.value, shape.back()};
  if (place.entry >= 0) shape.insert(shape.begin(), 0);
  if (place.change == GgufChange::Transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

/// Collects the tensors of a file.
class FileTensors {
 public:
  FileTensors(const GgufFamily& family, const GgufModel& model, const GgufHeads& heads, const std::string& type)
      : family_(family), heads_(heads), type_(type) {
    for (const auto& [name, factors] : model.tensors)
      all_.push_back({{name, {static_cast<int64_t>(factors.size())}, formats::gguf_type("F32")}, {}, {}, factors});
  }

  void add(const ExternalPart& part) {
    const std::vector<GgufPlace> places = gguf_places(family_, part.name);
    require(!places.empty(), "gguf", "GGUF files of ", family_.architecture, " have no name for ", part.name);
    for (const GgufPlace& place : places) add(part, place);
  }

  std::vector<Planned> take() { return std::move(all_); }

 private:
  void add(const ExternalPart& part, const GgufPlace& place) {
    const auto [found, is_new] = by_name_.emplace(place.name, all_.size());
    if (is_new) {
      Planned planned{{place.name, shape_of(part, place, heads_), nullptr}, place.change, {}, {}};
      planned.tensor.type = type_of(planned.tensor, type_);
      all_.push_back(std::move(planned));
    }
    Planned& planned = all_[found->second];
    const auto entry = static_cast<size_t>(std::max<int64_t>(0, place.entry));
    if (entry == planned.entries.size()) {
      planned.entries.emplace_back();
      if (place.entry >= 0) ++planned.tensor.shape.front();
    }
    planned.entries.at(entry).push_back(&part);
  }

  const GgufFamily& family_;
  const GgufHeads heads_;
  const std::string type_;
  std::vector<Planned> all_;
  std::map<std::string, size_t> by_name_;
};

/// Returns the blocks of a tensor, or of one entry of a stack, of which `part` is a part.
std::string encoded(const Planned& planned, const ExternalPart& part, const at::Tensor& whole, const GgufHeads& heads) {
  const formats::GgufTensor& tensor = planned.tensor;
  const at::Tensor theirs = part.to_theirs(whole).to(at::kFloat);
  const at::Tensor numbers = to_gguf(theirs, planned.change, heads).contiguous();
  require(tensor.type->block == 1 || numbers.isfinite().all().item<bool>(), "gguf", tensor.name,
          " has values that are not finite, which ", tensor.type->name, " cannot store; write f32");
  const int64_t count = numbers.numel();
  std::string blocks(static_cast<size_t>(count / tensor.type->block * tensor.type->bytes), '\0');
  encode_gguf(*tensor.type, numbers.const_data_ptr<float>(), count, blocks.data());
  return blocks;
}

std::vector<formats::GgufTensor> tensors_of(const std::vector<Planned>& all) {
  std::vector<formats::GgufTensor> tensors;
  for (const Planned& planned : all) tensors.push_back(planned.tensor);
  return tensors;
}

/// Returns the number of layers after the last block, which the file has no names for.
int64_t multi_token_layers(const nlohmann::json& config) {
  const GgufFamily* family = family_of_model_type(config.at("model_type").get<std::string>());
  return family && family->has_multi_token ? config.value("num_nextn_predict_layers", int64_t{0}) : 0;
}

GgufHeads heads_of(const GgufModel& model, const GgufFamily& family) {
  if (has_latent(family)) return latent_heads(model.values);
  const std::string key = concat(family.architecture, ".attention.head_count");
  const int64_t heads = model.values.at(key).integers.front();
  const auto shared = model.values.find(key + "_kv");
  return {heads, shared == model.values.end() ? heads : shared->second.integers.front()};
}

}  // namespace

const std::vector<std::string>& gguf_type_names() {
  static const std::vector<std::string> names{"f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"};
  return names;
}

std::optional<std::string> notice_of_gguf(const nlohmann::json& config) {
  const int64_t layers = multi_token_layers(config);
  if (layers == 0) return {};
  return concat("the file leaves out ", layers, layers == 1 ? " multi-token layer" : " multi-token layers",
                ", which llama.cpp does not compute; generation does not need ", layers == 1 ? "it" : "them");
}

void export_gguf(const std::string& path, const nn::Parameters& parameters, const ExternalNames& external,
                 const nlohmann::json& config, const formats::GgufValues& tokenizer, const std::string& type,
                 comm::Group& world) {
  std::vector<ExternalPart> parts;
  std::vector<Planned> all;
  GgufHeads heads;
  std::unique_ptr<formats::GgufWriter> writer;
  const at::Device device = parameters.options().device;
  comm::agree(world, device, [&] {
    const formats::GgufType* its = formats::gguf_type(type);
    require(its && can_encode(*its), "gguf", "GGUF files cannot be written in type ", type);
    GgufModel model = gguf_of_config(config);
    const GgufFamily& family = *family_of_model_type(config.at("model_type").get<std::string>());
    require_none_added(parameters, external.model);
    parts = external_parts(parameters, external.names, external.model);
    heads = heads_of(model, family);
    FileTensors tensors(family, model, heads, its->name);
    const int64_t layers = multi_token_layers(config) > 0 ? config.at("num_hidden_layers").get<int64_t>() : 0;
    for (const ExternalPart& part : parts)
      if (layers == 0 || layer_of(family, part.name) < layers) tensors.add(part);
    all = tensors.take();
    for (const auto& [name, number] : kFileTypes)
      if (std::string(its->name) == name) model.values["general.file_type"] = formats::GgufValue::integer(number);
    model.values["general.quantization_version"] = formats::GgufValue::integer(2);
    model.values.insert(tokenizer.begin(), tokenizer.end());
    if (world.rank() == 0) writer = std::make_unique<formats::GgufWriter>(path, model.values, tensors_of(all));
  });
  // A failed write must not throw here: the other ranks continue to send, so rank 0 must continue to receive.
  std::exception_ptr failure;
  const auto write = [&](const auto& blocks) {
    if (world.rank() != 0 || failure) return;
    try {
      writer->write_part(blocks());
    } catch (...) {
      failure = std::current_exception();
    }
  };
  for (const Planned& planned : all) {
    if (planned.entries.empty())
      write([&] {
        return std::string_view(reinterpret_cast<const char*>(planned.factors.data()),
                                planned.factors.size() * sizeof(float));
      });
    for (const Parts& entry : planned.entries) {
      const at::Tensor whole = gather(entry, parameters, world);
      write([&] { return encoded(planned, *entry.front(), whole, heads); });
    }
  }
  comm::agree(world, device, [&] {
    if (failure) std::rethrow_exception(failure);
    if (writer) writer->finish();
  });
}

}  // namespace colossal::checkpoint

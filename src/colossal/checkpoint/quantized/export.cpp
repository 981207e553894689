#include "colossal/checkpoint/quantized/export.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;
constexpr char kExport[] = "quantization";
using CodesByName = std::map<std::string, ops::GroupCodes>;

/// Packs uint8 [a, b, 32 / bits] to int32 [a, b].
at::Tensor words_of_codes(const at::Tensor& codes, int64_t bits) {
  at::Tensor bytes = codes;
  if (bits == 4) {
    const at::Tensor pairs = codes.unflatten(2, {4, 2});
    bytes = pairs.select(3, 0).bitwise_or(pairs.select(3, 1).bitwise_left_shift(4));
  }
  return bytes.contiguous().view(at::kInt).squeeze(2);
}

/// Form of the quantized values, the same for all weights of a folder.
struct CommonForm {
  int64_t bits = 0, group = 0;
  bool minima = false;
};

/// Returns the name that the quantized values of a part have: that of the parameter, or of one matrix of a stack.
std::string matrix_of(const ExternalPart& part) {
  return part.stack == Stack::None ? part.parameter->name : concat(part.parameter->name, ".", part.box.start[0]);
}

/// Returns outputs and inputs of the folder's tensor of a part.
std::vector<int64_t> matrix_shape(const ExternalPart& part) {
  return part.stack == Stack::Separate ? part.external_shape() : part.shape();
}

/// Returns the shapes of all parameters of this rank, and of the matrices of stacks.
std::map<std::string, std::vector<int64_t>> known_shapes(const nn::Parameters& parameters) {
  std::map<std::string, std::vector<int64_t>> known;
  for (const nn::Parameter& p : parameters) {
    const std::vector<int64_t>& shape = p.spec.shape;
    known[p.name] = shape;
    for (int64_t e = 0; p.is_stack && e < shape[0]; ++e)
      known[concat(p.name, ".", e)].assign(shape.begin() + 1, shape.end());
  }
  return known;
}

CommonForm common_form(const CodesByName& codes, const nn::Parameters& parameters) {
  require(!codes.empty(), kExport, "at least one weight must be quantized");
  const ops::GroupCodes& first = codes.begin()->second;
  const CommonForm form{first.bits, first.group, first.minima.defined()};
  const std::map<std::string, std::vector<int64_t>> known = known_shapes(parameters);
  for (const auto& [name, its] : codes) {
    its.check();
    require(known.count(name) > 0, kExport, "quantized values must belong to a parameter of this rank: got ", name);
    require(its.codes.sizes() == known.at(name), kExport, "quantized values of ", name, " must be ",
            describe(known.at(name)), ": got ", describe(its.codes.sizes().vec()));
    require(its.bits == form.bits && its.group == form.group && its.minima.defined() == form.minima, kExport,
            "all weights of a folder must be quantized alike: ", name, " and ", codes.begin()->first,
            " differ in bits, group or minima");
    if (form.minima) {
      const at::Tensor zeros = (its.minima / its.scales).nan_to_num(0, 0, 0).neg().round();
      require(at::equal(zeros.clamp(0, 15) * its.scales * -1, its.minima), kExport, "minima of ", name,
              " must be whole multiples of scales, 0 to -15; round with RoundingOptions::whole_zeros");
    }
  }
  return form;
}

/// Assembles one tensor of the folder from rows of the parameters' quantized values.
at::Tensor whole_of(const Parts& parts, const CodesByName& codes, at::Tensor ops::GroupCodes::* field) {
  at::Tensor whole;
  for (const ExternalPart* part : parts) {
    const size_t d = part->stack == Stack::None ? 0 : 1;  // the dimension of outputs
    const at::Tensor rows = (codes.at(matrix_of(*part)).*field).narrow(0, part->box.start[d], part->box.size[d]);
    if (d == 1) return rows;  // a tensor of an expert holds rows of one matrix
    if (!whole.defined()) whole = at::empty({part->rows, rows.size(1)}, rows.options());
    part->rows_of(whole).copy_(rows);
  }
  return whole;
}

std::map<std::string, at::Tensor> gptq_tensors(const std::string& base, const Parts& parts, const CodesByName& codes,
                                               const CommonForm& form) {
  const at::Tensor code = whole_of(parts, codes, &ops::GroupCodes::codes);
  const at::Tensor scale = whole_of(parts, codes, &ops::GroupCodes::scales);
  const int64_t inputs = code.size(1), in_word = 32 / form.bits;
  at::Tensor zero = at::full_like(scale, 1 << (form.bits - 1));
  if (form.minima)
    zero = (whole_of(parts, codes, &ops::GroupCodes::minima) / scale).nan_to_num(0, 0, 0).neg().round();
  else
    zero = zero - 1;  // checkpoint_format gptq stores zero points less one
  return {
      {base + ".qweight", words_of_codes(code.view({code.size(0), -1, in_word}).transpose(0, 1), form.bits)},
      {base + ".qzeros", words_of_codes(zero.t().to(at::kByte).contiguous().unflatten(1, {-1, in_word}), form.bits)},
      {base + ".scales", scale.t().to(at::kHalf)},
      {base + ".g_idx", at::arange(inputs, at::kLong).floor_divide(form.group).to(at::kInt)}};
}

json with_format(json config, const CommonForm& form, bool head) {
  config["quantization_config"] = {{"quant_method", "gptq"},   {"bits", form.bits},
                                   {"group_size", form.group}, {"sym", !form.minima},
                                   {"desc_act", false},        {"true_sequential", true},
                                   {"lm_head", head},          {"checkpoint_format", form.minima ? "gptq_v2" : "gptq"}};
  return config;
}

/// A tensor to write. Quantized tensors are computed only when they are written.
struct PlannedTensor {
  Parts parts;
  std::string base;  ///< for a quantized tensor the name without ".weight"; "" = not quantized
};

bool has_codes(const std::string& name, const Parts& parts, const CodesByName& codes) {
  size_t with = 0;
  for (const ExternalPart* part : parts) with += codes.count(matrix_of(*part));
  require(with == 0 || with == parts.size(), kExport, "rows of ", name, " must be all quantized or none");
  const bool is_matrix = parts.front()->leading_ones == 0 && parts.front()->stack != Stack::Joint;
  require(with == 0 || (name.ends_with(".weight") && is_matrix), kExport, name, " cannot be quantized in a folder");
  return with > 0;
}

}  // namespace

void check_gptq(const nn::Parameters& parameters, const std::vector<std::string>& matrices, int64_t bits,
                const ExternalNames& external) {
  const std::set<std::string> names(matrices.begin(), matrices.end());
  const int64_t in_word = 32 / bits;
  for (const ExternalPart& part : external_parts(parameters, external.names, external.model))
    if (names.contains(matrix_of(part))) {
      const std::vector<int64_t> shape = matrix_shape(part);
      require(shape[0] % in_word == 0 && shape[1] % in_word == 0, kExport, part.name,
              " must have outputs and inputs in multiples of ", in_word, " to be quantized to ", bits,
              " bits in a folder: got ", shape[0], " and ", shape[1],
              bits == 4 && shape[0] % 4 == 0 && shape[1] % 4 == 0 ? "; use --bits 8, or" : ";",
              " quantize while loading, which takes all sizes: --quantize=int", bits, " of generate, chat and serve");
    }
}

void export_gptq(const std::string& folder, const nn::Parameters& parameters, const CodesByName& codes,
                 const ExternalNames& external, const json& config, at::ScalarType dtype) {
  require_none_added(parameters, external.model);
  const std::vector<ExternalPart> parts = external_parts(parameters, external.names, external.model);
  const CommonForm form = common_form(codes, parameters);
  std::vector<std::string> matrices;
  for (const auto& [name, its] : codes) matrices.push_back(name);
  check_gptq(parameters, matrices, form.bits, external);
  for (const nn::Parameter& p : parameters.declared())
    require(p.spec.local_shape(parameters.coordinates()) == p.spec.shape && p.value.defined(), kExport, p.name,
            " must be whole on this rank to be quantized: use one rank");
  std::map<std::string, Parts> by_name;
  for (const ExternalPart& part : parts) by_name[part.name].push_back(&part);
  create_folder(folder);
  require(!std::filesystem::exists(folder + "/model.safetensors.index.json"), kExport, folder,
          " holds weights in several files already; choose an empty folder");
  std::map<std::string, PlannedTensor> planned;  // keyed by the written names
  std::vector<TensorEntry> entries;
  for (const auto& [name, own] : by_name) {
    if (!has_codes(name, own, codes)) {
      planned[name] = {own, ""};
      entries.push_back({name, dtype, own.front()->external_shape()});
      continue;
    }
    const std::string base = name.substr(0, name.size() - std::string(".weight").size());
    const std::vector<int64_t> shape = matrix_shape(*own.front());
    const int64_t in_word = 32 / form.bits, outputs = shape[0], inputs = shape[1];
    const int64_t groups = (inputs + form.group - 1) / form.group;
    for (const char* end : {".qweight", ".qzeros", ".scales", ".g_idx"}) planned[base + end] = {own, base};
    entries.push_back({base + ".qweight", at::kInt, {inputs / in_word, outputs}});
    entries.push_back({base + ".qzeros", at::kInt, {groups, outputs / in_word}});
    entries.push_back({base + ".scales", at::kHalf, {groups, outputs}});
    entries.push_back({base + ".g_idx", at::kInt, {inputs}});
  }
  const bool head = planned.count("lm_head.qweight") > 0;
  SafetensorsWriter writer(folder + "/model.safetensors", entries, {{"format", "pt"}});
  for (const TensorEntry& entry : writer.entries()) {
    const auto& [own, base] = planned.at(entry.name);
    if (!base.empty()) {
      writer.write(gptq_tensors(base, own, codes, form).at(entry.name));
      continue;
    }
    at::Tensor whole;
    for (const ExternalPart* part : own) {
      const at::Tensor rows = at_box(part->parameter->value.detach(), part->box).cpu();
      if (own.size() == 1) whole = rows;
      if (!whole.defined()) whole = at::empty(part->shape(), rows.options());
      if (own.size() > 1) part->rows_of(whole).copy_(rows);
    }
    writer.write(own.front()->to_theirs(whole.to(dtype)));
  }
  writer.finish();
  write_file(folder + "/config.json", with_format(config, form, head).dump(2) + "\n");
}

}  // namespace colossal::checkpoint

#include "colossal/run/base_codes.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/run/external_names.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

using Matrices = std::vector<nn::FrozenCodes::Matrix>;

/// Returns a weight [out, in] on meta that takes as much memory as codes of that form.
nn::FrozenCodes::Matrix matrix_on_meta(const checkpoint::CodesForm& form, int64_t out, int64_t in) {
  if (!form.is_nf4) return ops::CodedMatrix::on_meta(out, in, form.bits, form.group, form.minima);
  const std::vector<ops::Nf4Form> whole{ops::Nf4Form::whole(out, in, form.double_quantized)};
  return ops::Nf4Matrix::of(whole,
                            at::empty({ops::bytes_of(whole)}, at::TensorOptions().dtype(at::kByte).device(at::kMeta)));
}

Matrices matrices_on_meta(const checkpoint::CodesForm& form, const nn::Parameter& parameter) {
  const at::IntArrayRef sizes = parameter.value.sizes();
  const int64_t count = parameter.is_stack ? sizes[0] : 1;
  return Matrices(static_cast<size_t>(count), matrix_on_meta(form, sizes.end()[-2], sizes.end()[-1]));
}

/// Returns the parameter of a matrix that checkpoint::TakeCodes names: "<stack>.<index>" or the parameter itself.
std::string owner_of(const std::string& name, const std::map<std::string, Matrices>& found) {
  return found.contains(name) ? name : name.substr(0, name.rfind('.'));
}

}  // namespace

bool keeps_codes(const Config& config) {
  const std::string& from = config.model.from;
  std::error_code ignored;
  const bool makes_others = config.tables.text("adapter.base").value_or("model") != "model";
  return !from.empty() && !makes_others && std::filesystem::exists(from, ignored) && !is_run(from) &&
         !has_numbers(from);
}

void check_codes(const Config& config) {
  const parallel::TensorConfig& tensor = config.parallel.tensor;
  const bool gathers = tensor.size > 1 && (tensor.mode != "1d" || tensor.sequence);
  require(!gathers, "adapter", "a quantized model.from must have a layout that does not gather blocks of weights: got ",
          tensor.sequence ? "parallel.tensor.sequence = true" : "parallel.tensor.mode = \"" + tensor.mode + "\"",
          "; set tensor.mode = \"1d\" and tensor.sequence = false, or write the weights as numbers with `colossal "
          "export --from ",
          config.model.from, " --to FOLDER`");
  require(config.precision.mode != "fp8", "adapter",
          "precision.mode must not be fp8 with a quantized model.from, whose decoded weights it would quantize again: "
          "got \"fp8\"; set another one, or write the weights as numbers with `colossal export --from ",
          config.model.from, " --to FOLDER`");
}

void read_base_codes(const std::string& from, const models::ModelShape& shape, nn::Parameters& parameters,
                     nn::FrozenCodes& codes) {
  const memory::KindScope kind(memory::Kind::Parameters);
  const at::TensorOptions options = at::TensorOptions().dtype(parameters.options().dtype);
  const at::Device device = parameters.options().device;
  const std::vector<nn::Parameter*> candidates = codes.candidates(parameters);
  std::vector<checkpoint::NamedTensor> values;
  std::map<std::string, Matrices> found;
  std::map<std::string, int64_t> inputs;
  for (const nn::Parameter* p : candidates) {
    values.push_back({p->name, p->value.detach(), p->spec, {}});
    found[p->name];
    inputs[p->name] = p->value.size(-1);
  }
  const checkpoint::ExternalNames names = external_names(shape, head_that_may_lack(shape));
  if (device.is_meta()) {
    const auto forms = checkpoint::codes_forms(from, parameters, values, names);
    for (nn::Parameter* p : candidates)
      if (const auto form = forms.find(p->name); form != forms.end()) codes.put(*p, matrices_on_meta(form->second, *p));
    return;
  }
  const auto take = [&](const std::string& name, const checkpoint::ReadCodes& read) {
    const auto own = read();
    if (own) found.at(owner_of(name, found)).emplace_back(ops::CodedMatrix(*own, options.device(device), true));
    return own.has_value();
  };
  const auto take_nf4 = [&](const std::string& name, const checkpoint::ReadNf4& read) {
    const auto own = read(std::nullopt);
    if (!own) return false;
    const std::string owner = owner_of(name, found);
    std::vector<ops::Nf4Weight> parts;
    for (const ops::Nf4Weight& part : *own) parts.push_back(device.is_cpu() ? part : part.to(device));
    found.at(owner).emplace_back(ops::Nf4Matrix(std::move(parts), inputs.at(owner)));
    return true;
  };
  checkpoint::read_codes(from, parameters, values, names, take, take_nf4);
  for (nn::Parameter* p : candidates) {
    Matrices& own = found.at(p->name);
    if (static_cast<int64_t>(own.size()) == (p->is_stack ? p->value.size(0) : 1)) codes.put(*p, std::move(own));
  }
}

}  // namespace colossal::run

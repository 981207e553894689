#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/base/wildcard.h"
#include "colossal/checkpoint/folding/weights.h"
#include "colossal/checkpoint/gguf/family.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/checkpoint/hugging_face/folder_codes.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/hugging_face/local_parts.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/local_boxes.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/checkpoint/quantized/folder.h"
#include "colossal/checkpoint/strided_weights.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {

std::optional<std::string> name_in(const WeightSource& files, const std::string& name, const ExternalNames& external) {
  std::optional<std::string> found = files.find(name, external.prefix);
  for (const auto& [ending, old] : external.old_endings)
    if (!found && name.ends_with(ending))
      found = files.find(name.substr(0, name.size() - ending.size()) + old, external.prefix);
  return found;
}

namespace {

/// Returns the tensor that holds the values of `name`: the one of that name, or else one of its copies, because other
/// programs may have kept only one of them.
std::optional<std::string> tensor_of(const WeightSource& files, const std::string& name,
                                     const ExternalNames& external) {
  std::optional<std::string> found = name_in(files, name, external);
  for (const nn::ExternalCopy& copy : external.copies)
    if (!found && copy.original == name) found = name_in(files, copy.name, external);
  return found;
}

/// Returns our names in the form that this folder has. If it holds a stack as one tensor, the name is that tensor's.
std::vector<nn::ExternalName> names_in_form(const WeightSource& files, const ExternalNames& external) {
  std::vector<nn::ExternalName> names = external.names;
  for (nn::ExternalName& name : names)
    if (!name.joint.empty() && name_in(files, name.joint, external)) name.parts = {name.joint};
  return names;
}

/// Returns the copies that the folder holds, with the tensors that are read instead, by their names in the folder.
std::vector<nn::ExternalCopy> copies_in(const WeightSource& files, const ExternalNames& external) {
  std::vector<nn::ExternalCopy> found;
  for (const nn::ExternalCopy& copy : external.copies) {
    const std::optional<std::string> second = files.find(copy.name, external.prefix),
                                     first = tensor_of(files, copy.original, external);
    if (second && first && *second != *first) found.push_back({*second, *first, copy.reason, copy.remedy});
  }
  return found;
}

void require_equal(const nn::ExternalCopy& copy, const WeightSource& files, const std::string& folder) {
  const at::Tensor second = files.tensor(copy.name), first = files.tensor(copy.original);
  // If the dtypes differ, either tensor may be the other one rounded to its dtype.
  const bool equal = second.sizes() == first.sizes() && (at::equal(second.to(first.scalar_type()), first) ||
                                                         at::equal(first.to(second.scalar_type()), second));
  const std::string found = concat(describe(second.scalar_type(), second.sizes().vec()), " and ",
                                   describe(first.scalar_type(), first.sizes().vec()), ", which differ");
  files.leave(copy.name), files.leave(copy.original);
  require(equal, "hugging face", folder, ": ", printable(copy.name), " must equal ", printable(copy.original),
          ", because ", copy.reason, " makes them one weight: got ", found, "; ", copy.remedy);
}

/// Returns the source tensor of each part. Throws a table of all missing, misshapen and unused tensors, or an error for
/// a copy that differs from its original.
std::vector<PartSource> match(const std::vector<ExternalPart>& parts, const WeightSource& files,
                              const ExternalNames& external, const std::string& folder) {
  MismatchTable table;
  std::vector<PartSource> sources;
  std::set<std::string> used, lacking, told;
  for (const ExternalPart& part : parts) {
    const std::optional<std::string> name = tensor_of(files, part.name, external);
    const bool fits = name && files.entries().at(*name)->shape == part.external_shape();
    if (name) used.insert(*name);
    if (!fits && matches_one(part.parameter->own_name(), external.may_lack)) {
      lacking.insert(part.parameter->name);
      continue;
    }
    if (name) sources.push_back({&part, *name});
    const bool is_sound = fits && at::isFloatingType(files.entries().at(*name)->dtype);
    if (is_sound || !told.insert(part.name).second) continue;  // several parts may be rows of one tensor
    if (!name) {
      table.add(part.name, describe(part.external_shape()), "-");
      continue;
    }
    const TensorEntry& entry = *files.entries().at(*name);
    table.add(*name, describe(part.external_shape()), describe(entry.dtype, entry.shape));
  }
  const std::vector<nn::ExternalCopy> copies = copies_in(files, external);
  for (const nn::ExternalCopy& copy : copies) used.insert(copy.name);
  for (const auto& [name, entry] : files.entries())
    if (used.count(name) == 0 && !matches_one(name, external.ignored))
      table.add(name, "-", describe(entry->dtype, entry->shape));
  table.require_empty("hugging face", folder + " does not hold this model" + wrapper_note(files));
  for (const nn::ExternalCopy& copy : copies) require_equal(copy, files, folder);
  // A parameter that lacks one part gets none: a fused parameter is loaded completely or not at all.
  std::erase_if(sources, [&](const PartSource& source) { return lacking.count(source.part->parameter->name) > 0; });
  return sources;
}

/// Copies this rank's blocks of one source. Returns true if the source was read.
bool copy_part(const PartSource& source, const WeightSource& files, const NamedTensor& value, const at::Tensor& to,
               const tensor::MeshCoordinates& coordinates) {
  const ExternalPart& part = *source.part;
  std::optional<at::Tensor> stored;  // read at the first block that needs it
  for (const tensor::LocalBox& block : local_boxes_of(value, coordinates)) {
    const std::optional<Box> common = intersect(part.box, {block.start, block.size});
    if (!common) continue;
    if (!stored) stored = read_part(source, files);
    at_box(at_local_box(value, to, coordinates, block), *common, block.start)
        .copy_(at_box(*stored, *common, part.box.start));
  }
  return stored.has_value();
}

/// Copies this rank's part of a value from its sources, one after the other. The pages of each entry of a stack are
/// released before the next entry is read, even if one tensor holds them all.
void copy_parts(const std::vector<const PartSource*>& sources, const WeightSource& files, const NamedTensor& value,
                const at::Tensor& to, const tensor::MeshCoordinates& coordinates) {
  std::string open;  // name of the tensor that was read last
  for (const PartSource* source : sources) {
    const bool is_next = open != source->name || source->part->stack != Stack::None;
    if (!open.empty() && is_next) files.leave(open), open.clear();
    if (copy_part(*source, files, value, to, coordinates)) open = source->name;
  }
  if (!open.empty()) files.leave(open);
}

/// Passes a value to `takes`, the matrices of a stack one by one; takes(name, entry) gets -1 as the entry of a value
/// that is not a stack. Returns true if it took all, so that the value itself is not needed.
template <class Takes>
bool pass_matrices(const NamedTensor& value, bool is_stack, const tensor::MeshCoordinates& coordinates,
                   const Takes& takes) {
  if (!is_stack) return takes(value.name, -1);
  bool all = true;
  for (const int64_t entry : local_entries(value, coordinates)) all &= takes(concat(value.name, ".", entry), entry);
  return all;
}

/// Passes a value to `take` as its quantized values. Returns true if it is not needed then.
bool take_codes(const std::vector<const PartSource*>& sources, const WeightSource& files, const NamedTensor& value,
                const tensor::MeshCoordinates& coordinates, const TakeCodes& take) {
  const Stack stack = sources.front()->part->stack;
  if (stack == Stack::Joint || (stack != Stack::None && value.part)) return false;
  return pass_matrices(value, stack != Stack::None, coordinates, [&](const std::string& name, int64_t entry) {
    return take(name, [&] { return local_codes(sources, files, value, coordinates, entry); });
  });
}

/// Returns the dtype of the tensors that `sources` name; none = they differ.
std::optional<at::ScalarType> dtype_of(const std::vector<const PartSource*>& sources, const WeightSource& files) {
  const auto dtype = [&](const PartSource* source) { return files.entries().at(source->name)->dtype; };
  const at::ScalarType first = dtype(sources.front());
  const bool is_one = std::all_of(sources.begin(), sources.end(), [&](const auto* one) { return dtype(one) == first; });
  return is_one ? std::optional(first) : std::nullopt;
}

/// Passes a value to `take` as the tensors that hold its rows. Returns true if it is not needed then.
bool take_rows(const std::vector<const PartSource*>& sources, const WeightSource& files, const NamedTensor& value,
               const tensor::MeshCoordinates& coordinates, const TakeRows& take) {
  const bool is_stack = sources.front()->part->stack != Stack::None;
  if (value.part) return false;
  return pass_matrices(value, is_stack, coordinates, [&](const std::string& name, int64_t entry) {
    bool were_read = false;
    const auto read = [&] {
      auto rows = local_rows(sources, files, value, coordinates, entry);
      were_read = rows.has_value();
      return rows;
    };
    const bool taken = take(name, {read, dtype_of(sources, files)});
    if (were_read)
      for (const PartSource* source : sources)
        if (entry < 0 || source->part->box.start[0] == entry) files.leave(source->name);
    return taken;
  });
}

/// Returns true if the sources fill all of a value, so that none of it is padding.
bool fill_all(const std::vector<const PartSource*>& sources, const NamedTensor& value,
              const tensor::MeshCoordinates& coordinates) {
  int64_t filled = 0;
  const std::vector<tensor::LocalBox> blocks = local_boxes_of(value, coordinates);
  for (const PartSource* source : sources)
    for (const tensor::LocalBox& block : blocks)
      if (const auto common = intersect(source->part->box, {block.start, block.size})) filled += common->numel();
  return filled == value.value.numel();
}

/// The import of values from an open source.
struct Import {
  Import(std::shared_ptr<const WeightSource> source, const std::string& folder, const nn::Parameters& parameters,
         const ExternalNames& external)
      : files(std::move(source)),
        coordinates(parameters.coordinates()),
        parts(external_parts(parameters, names_in_form(*files, external), external.model)),
        sources(match(parts, *files, external, folder)) {
    for (const PartSource& one : sources) {
      const nn::Parameter& parameter = *one.part->parameter;
      found[parameter.name].push_back(&one);
      const auto form = parameters.form_of(parameter);
      if (form && form->filling() == nn::FrozenFilling::Codes) forms[parameter.name] = form;
    }
  }

  /// `held`: memory of a value, which the next one replaces; see Stored.
  void load(const NamedTensor& value, tensor::Held& held) const {
    const std::vector<const PartSource*>& own = found.at(value.name);
    if (const auto form = forms.find(value.name); form != forms.end()) {
      value.value.write_into(held);
      return copy_codes(own, *files, value, held.value, *form->second, coordinates);
    }
    if (take && take_codes(own, *files, value, coordinates, take)) return;
    if (take_values && take_rows(own, *files, value, coordinates, take_values)) return;
    value.value.write_into(held);
    if (!fill_all(own, value, coordinates)) held.value.detach().zero_();  // for padding
    copy_parts(own, *files, value, held.value, coordinates);
  }
  bool can_wait(const NamedTensor& value) const {
    const std::vector<const PartSource*>& own = found.at(value.name);
    return std::all_of(own.begin(), own.end(), [&](const PartSource* one) { return files->can_wait(one->name); });
  }

  std::shared_ptr<const WeightSource> files;
  tensor::MeshCoordinates coordinates;
  std::vector<ExternalPart> parts;
  std::vector<PartSource> sources;                                     // sources of `parts`
  std::map<std::string, std::vector<const PartSource*>> found;         // `sources` by the names of parameters
  std::map<std::string, std::shared_ptr<const nn::FrozenForm>> forms;  // of parameters that take codes
  TakeCodes take{};
  TakeRows take_values{};
};

/// Fills `values`. Returns the names of the parameters that the source lacks.
std::vector<std::string> fill(const std::shared_ptr<const Import>& import, const nn::Parameters& parameters,
                              const std::vector<NamedTensor>& values, const std::string& model,
                              const TakeLater& take_later) {
  tensor::Held held;
  for (const NamedTensor& value : values) {
    if (!import->found.count(value.name)) continue;
    const bool waits = take_later && import->can_wait(value) && take_later(value.name, [import, value] {
                         tensor::Held own;
                         import->load(value, own);
                       });
    if (!waits) import->load(value, held);
  }
  std::vector<std::string> lacking;
  for (const nn::Parameter& parameter : parameters.declared())
    if (!parameter.is_added && parameter.model == model && !import->found.count(parameter.name))
      lacking.push_back(parameter.name);
  return lacking;
}

}  // namespace

std::map<std::string, std::vector<nn::FolderMatrix>> coded_matrices(const std::string& folder,
                                                                    const nn::Parameters& parameters,
                                                                    const ExternalNames& external) {
  const Import import(open_weights(folder, external.beside), folder, parameters, external);
  std::map<std::string, std::vector<nn::FolderMatrix>> all;
  for (const auto& [name, sources] : import.found)
    if (auto matrices = coded_matrices_of(sources, *import.files)) all[name] = std::move(*matrices);
  return all;
}

bool matches_one(const std::string& name, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns)
    if (matches_wildcards(pattern, name)) return true;
  return false;
}

nlohmann::json read_config(const std::string& folder) {
  if (formats::is_gguf(folder)) return config_of_gguf(formats::GgufFile(folder));
  if (const std::optional<LdmPart> part = ldm_part(folder)) return ldm_config(*part);
  if (is_strided_file(folder)) return folding_config(folder);
  const std::string path = model_folder(folder) + "/config.json";
  nlohmann::json config = read_json_object(path, "hugging face");
  if (is_quantized(config)) {
    quantized_format(config, path);
    config.erase("quantization_config");
  }
  return config;
}

std::optional<std::string> find_tensor(const std::string& folder, const std::string& pattern) {
  const std::unique_ptr<WeightSource> files = open_weights(folder);
  for (const auto& [name, entry] : files->entries())
    if (matches_wildcards(pattern, name)) return name;
  return {};
}

TensorDtypes dtypes_in(const std::string& folder, const ExternalNames& external, at::ScalarType others) {
  const std::unique_ptr<WeightSource> files = open_weights(folder);
  TensorDtypes dtypes{.others = others};
  for (const nn::ExternalName& name : external.names)
    for (const nn::ExternalRows& part : name.parts)
      if (const std::optional<std::string> found = tensor_of(*files, part.name, external))
        if (const at::ScalarType dtype = files->entries().at(*found)->dtype; at::isFloatingType(dtype))
          dtypes.by_name[part.name] = dtype;
  return dtypes;
}

void import_weights(const std::string& folder, nn::Parameters& parameters, const ExternalNames& external) {
  std::vector<NamedTensor> values;
  for (const nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach(), p.spec, {}});
  for (const nn::Buffer& b : parameters.buffers())
    if (b.value.defined()) values.push_back({b.name, b.value, b.spec, {}});
  import_weights(folder, parameters, values, external);
}

std::vector<std::string> import_weights(const std::string& folder, const nn::Parameters& parameters,
                                        const std::vector<NamedTensor>& values, const ExternalNames& external,
                                        const TakeCodes& take, const TakeRows& take_values,
                                        const TakeLater& take_later) {
  // Names that do not fit the model are refused before the folder is opened.
  external_parts(parameters, external.names, external.model);
  const auto import = std::make_shared<Import>(open_weights(folder, external.beside), folder, parameters, external);
  import->take = take;
  import->take_values = take_values;
  return fill(import, parameters, values, external.model, take_later);
}

std::vector<std::string> import_weights(const WeightSource& files, const std::string& folder,
                                        const nn::Parameters& parameters, const std::vector<NamedTensor>& values,
                                        const ExternalNames& external, const TakeCodes& take,
                                        const TakeRows& take_values) {
  const std::shared_ptr<const WeightSource> open(std::shared_ptr<void>(), &files);  // does not own it
  const auto import = std::make_shared<Import>(open, folder, parameters, external);
  import->take = take;
  import->take_values = take_values;
  return fill(import, parameters, values, external.model, {});
}

}  // namespace colossal::checkpoint

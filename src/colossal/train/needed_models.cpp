#include "colossal/train/needed_models.h"

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"

namespace colossal::train {

nlohmann::json needed_models(const std::vector<run::ResolvedFurther>& further, comm::Mesh& mesh) {
  if (further.empty()) return nlohmann::json::array();
  std::string text;
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.world().rank() != 0) return;
    const auto busy = mesh.world().busy("computing the checksums of further models");
    nlohmann::json needs = nlohmann::json::array();
    for (const run::ResolvedFurther& one : further)
      if (one.model.use == run::ModelUse::Frozen)
        needs.push_back(
            {{"name", one.model.name}, {"from", one.source.path}, {"checksum", run::checksum_of(one.source)}});
    text = needs.dump();
  });
  return parse_json(comm::broadcast_text(mesh.all(), at::kCPU, 0, text), "the list of needed models", "model");
}

std::string changed_models(const nlohmann::json& now, const nlohmann::json& saved) {
  std::string changed;
  for (const nlohmann::json& before : saved)
    for (const nlohmann::json& one : now) {
      if (one.at("name") != before.at("name")) continue;
      const bool is_same = one.at("checksum") == before.at("checksum") &&
                           (one.at("checksum") != "" || one.at("from") == before.at("from"));
      if (!is_same) changed += concat(changed.empty() ? "" : ", ", one.at("name").get<std::string>());
    }
  return changed;
}

std::string to_string(const run::ResolvedFurther& further, const ModelSize& size) {
  const std::string& name = further.model.name;
  if (further.model.use == run::ModelUse::WithoutAdapters)
    return concat(name, ": the main model without its adapters, with no parameters of its own");
  return concat(name, ": ", further.source.shape.architecture->name, " of ", size.parameters, " parameters from ",
                further.source.path, ", ", size.trained == 0 ? "frozen" : concat(size.trained, " of them train"),
                further.optimizer ? " by " + further.optimizer->name : "", ", ", readable_bytes(size.bytes),
                " over all ranks");
}

}  // namespace colossal::train

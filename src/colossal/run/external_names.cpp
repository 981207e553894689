#include "colossal/run/external_names.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"

namespace colossal::run {
namespace {

std::vector<models::IgnoredTensor> parts_left_out(const models::ModelShape& shape) {
  const auto left_out = shape.architecture->hugging_face.left_out;
  return left_out ? left_out(shape) : std::vector<models::IgnoredTensor>();
}

}  // namespace

checkpoint::ExternalNames external_names(const models::ModelShape& shape, std::vector<std::string> may_lack) {
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  std::vector<std::string> ignored = folder.ignored_names();
  for (models::IgnoredTensor& part : parts_left_out(shape)) ignored.push_back(std::move(part.name));
  may_lack.insert(may_lack.end(), folder.may_lack.begin(), folder.may_lack.end());
  return {folder.names(shape), folder.prefix,      std::move(ignored),
          std::move(may_lack), folder.old_endings, models::copies_in_folder(shape)};
}

std::optional<std::string> notice_of_left_out(const std::string& folder, const models::ModelShape& shape) {
  for (const models::IgnoredTensor& part : parts_left_out(shape))
    if (const std::optional<std::string> name = checkpoint::find_tensor(folder, part.name))
      return concat(folder, " holds ", printable(*name), ", which is left out: it belongs to ", part.reason);
  return {};
}

}  // namespace colossal::run

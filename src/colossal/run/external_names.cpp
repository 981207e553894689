#include "colossal/run/external_names.h"

#include <utility>

#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"

namespace colossal::run {

checkpoint::ExternalNames external_names(const models::ModelShape& shape, std::vector<std::string> may_lack) {
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  return {folder.names(shape), folder.prefix,      folder.ignored_names(),
          std::move(may_lack), folder.old_endings, models::copies_in_folder(shape)};
}

}  // namespace colossal::run

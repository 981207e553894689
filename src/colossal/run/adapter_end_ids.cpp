#include "colossal/run/adapter_end_ids.h"

#include <memory>
#include <set>

#include "colossal/base/error.h"
#include "colossal/text/end_tokens.h"

namespace colossal::run {

std::vector<int64_t> end_ids_of_adapter(const std::string& folder, const text::Tokenizer& tokenizer,
                                        const std::vector<int64_t>& of_model) {
  std::vector<int64_t> own = text::end_ids(folder);
  std::unique_ptr<text::Tokenizer> of_folder;
  if (own.empty() && text::has_tokenizer(folder)) {
    of_folder = text::make_tokenizer(folder);
    if (of_folder->end_id() >= 0) own.push_back(of_folder->end_id());
  }
  for (const int64_t id : own) {
    require(id < tokenizer.vocabulary_size(), "adapter", "an adapter must have the tokens of its model: got ", folder,
            ", whose end token is ", id, ", for a model of ", tokenizer.vocabulary_size(), " tokens");
    require(!of_folder || of_folder->spelling(id) == tokenizer.spelling(id), "adapter",
            "an adapter must have the tokens of its model: got ", folder, ", whose end token ", id, " is '",
            of_folder ? text::valid_utf8(of_folder->spelling(id)) : "", "', in the model '",
            text::valid_utf8(tokenizer.spelling(id)), "'");
  }
  std::set<int64_t> ids(of_model.begin(), of_model.end());
  ids.insert(own.begin(), own.end());
  return {ids.begin(), ids.end()};
}

}  // namespace colossal::run

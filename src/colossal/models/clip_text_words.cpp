#include "colossal/models/clip_text_words.h"

#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/families/clip_text.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

ModelShape with_learned_words(ModelShape text, int64_t rows) {
  require(text.own.holds<ClipTextSizes>(), "model", "words are learned by a clip_text: got ",
          with_article(text.architecture->name));
  require(rows >= 0, "model", "the rows of learned words must not be negative: got ", rows);
  text.set(LearnedWords{rows});
  return text;
}

int64_t learned_rows(const ModelShape& shape) {
  const auto text = shape.part<OwnTextEncoder>().shape;
  return (text ? *text : shape).part<LearnedWords>().rows;
}

bool is_learned_words(const std::string& name) {
  return name == "learned.weight" || name == "text.learned.weight" || name == "text_2.learned.weight";
}

}  // namespace colossal::models

#include "colossal/run/parts_within.h"

#include <utility>

#include "colossal/models/clip_text_words.h"
#include "colossal/run/control_source.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/model_source.h"

namespace colossal::run {

models::ModelShape with_parts(models::ModelShape shape, const Loading& loading) {
  if (loading.learned_rows > 0) shape = models::with_learned_words(std::move(shape), loading.learned_rows);
  if (loading.control) shape = with_control(std::move(shape), *loading.control);
  return loading.image_prompt ? with_image_prompt(std::move(shape), *loading.image_prompt) : shape;
}

TensorsOfParts take_parts(const nn::Parameters& parameters, PartTensors& tensors) {
  return {.control = take_control(parameters, tensors), .image = take_image_prompt(parameters, tensors)};
}

void fill_parts(TensorsOfParts parts, const Loading& loading, const models::ModelShape& shape,
                const nn::Parameters& parameters, comm::Mesh& mesh, const ModelSource& base) {
  if (loading.control)
    fill_control(loading.control->folder, shape, parameters, std::move(parts.control), mesh, loading.uses_average,
                 &base);
  if (loading.image_prompt)
    fill_image_prompt(loading.image_prompt->folder, shape, parameters, std::move(parts.image), mesh,
                      loading.uses_average, &base);
}

bool has_parts_alone(const std::string& run) {
  return is_control_run(run) || is_words_run(run) || is_image_prompt_run(run);
}

}  // namespace colossal::run

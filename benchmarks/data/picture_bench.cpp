// Measures how many pictures per second are decoded into batches. Usage: colossal_picture_bench FOLDER MODE THREADS
// BATCH SECONDS. FOLDER has one folder per class. MODE is `train` (random crops, mirrored) or `evaluate` (centre crop).
// Prints pictures per second.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "colossal/data/pictures/folder.h"

namespace colossal::data {
namespace {

double pictures_a_second(const std::string& folder, bool trains, int threads, int64_t batch, double least) {
  const auto samples =
      std::make_shared<PictureSamples>(PictureFolder::open(folder), PictureOptions{.width = 224, .augment = trains});
  Batches batches(samples, {.batch_size = batch, .seed = 1, .threads = threads});
  for (int i = 0; i < 4; ++i) batches.next();  // waits until the prefetch queue is full
  const auto began = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  int64_t made = 0;
  for (; spent() < least; made += batch) batches.next();
  return static_cast<double>(made) / spent();
}

}  // namespace
}  // namespace colossal::data

int main(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "usage: %s FOLDER train|evaluate THREADS BATCH SECONDS\n", arguments[0]);
    return 2;
  }
  try {
    const bool trains = arguments[2] == std::string("train");
    std::printf("%.1f\n", colossal::data::pictures_a_second(arguments[1], trains, std::atoi(arguments[3]),
                                                            std::atoi(arguments[4]), std::atof(arguments[5])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

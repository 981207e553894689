// Pictures drawn in this process. Python waits for them without the GIL.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/pictures/picture.h"
#include "colossal/serve/local_drawer.h"
#include "parts.h"

namespace colossal::binding {
namespace {

using serve::LocalDrawer;
using serve::LocalDrawing;

/// ([(width, height, seed, sampler, steps, seconds, PNG file, pixels)], lines for the user), or None: not drawn yet
py::object next_pictures(LocalDrawing& drawing, double seconds) {
  std::optional<serve::Drawn> drawn;
  std::vector<data::Picture> decoded;
  {
    const py::gil_scoped_release released;
    drawn = drawing.next(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    if (drawn)
      for (const diffusion::DrawnPicture& one : drawn->pictures)
        decoded.push_back(data::decode_picture(one.png, "a drawn picture"));
  }
  if (!drawn) return py::none();
  py::list pictures;
  for (size_t i = 0; i < decoded.size(); ++i) {
    const diffusion::DrawnPicture& one = drawn->pictures[i];
    const data::Picture& picture = decoded[i];
    pictures.append(py::make_tuple(picture.width, picture.height, one.seed, one.sampler, one.steps, one.seconds,
                                   py::bytes(one.png),
                                   py::bytes(reinterpret_cast<const char*>(picture.rgb.data()), picture.rgb.size())));
  }
  return py::make_tuple(pictures, drawn->notices);
}

}  // namespace

void bind_drawer(py::module_& module) {
  py::class_<LocalDrawing, Held<LocalDrawing>>(module, "Drawing")
      .def("next", &next_pictures, py::arg("seconds"))
      .def("cancel", &LocalDrawing::cancel, WithoutGil());
  py::class_<LocalDrawer, Held<LocalDrawer>>(module, "Drawer")
      .def(py::init([](const std::string& json) {
             return std::make_unique<LocalDrawer>(serve::read_local_drawer_options(json)).release();
           }),
           py::arg("options"), WithoutGil())
      .def(
          "draw",
          [](LocalDrawer& drawer, const std::string& json) {
            return Held<LocalDrawing>(drawer.draw(drawer.options(json)).release());
          },
          py::arg("options"), WithoutGil())
      .def("close", &LocalDrawer::close, WithoutGil())
      .def("notices", &LocalDrawer::notices);
}

}  // namespace colossal::binding

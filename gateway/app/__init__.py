"""The composition of the gateway: its parts from the settings, its process, its workers, and its embedding."""

from gateway.app.gateway import Gateway as Gateway
from gateway.app.gateway import build as build
from gateway.app.gateway import create_app as create_app
from gateway.app.reloading import check as check
from gateway.app.reloading import load_checked as load_checked
from gateway.app.wiring import UseCase as UseCase
from gateway.proxy.application import RUNNER_OPTIONS as RUNNER_OPTIONS
